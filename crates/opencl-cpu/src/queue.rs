//! In-order queues of launches, and of [commands on images](crate::ImageObject).

use crate::failure::{Failure, check};
use crate::kernel::{Argument, Kernel};
use crate::runtime::value;
use crate::types::*;
use crate::{Device, Runtime};
use std::ffi::c_void;
use std::ptr;
use std::sync::mpsc;

/// A queue that runs its commands one after the other, on the runtime's threads. Commands that were
/// submitted still run after the queue is dropped.
pub struct Queue {
    runtime: &'static Runtime,
    queue: cl_command_queue,
    is_of_part: bool,
}

/// The offset and the size of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The index of the first work-item in each dimension.
    pub offset: [usize; 3],
    /// The number of work-items in each dimension, which is at least 1.
    pub global: [usize; 3],
    /// The number of work-items of a work-group in each dimension, or `None` if the runtime chooses
    /// it.
    pub local: Option<[usize; 3]>,
}

/// A command that is in flight or complete.
pub struct Completion {
    runtime: &'static Runtime,
    event: cl_event,
    is_of_part: bool,
}

impl Queue {
    /// Creates a queue on a device. It accepts objects that were made for the device, or for
    /// another part of the same division.
    ///
    /// # Errors
    /// Fails with the runtime's code.
    pub fn new(device: &Device) -> Result<Self, Failure> {
        let runtime = device.runtime();
        let mut code = CL_SUCCESS;
        // SAFETY: the context and the device are alive. A null pointer means no properties, so the
        // queue is in-order.
        let queue = unsafe {
            (runtime.library.clCreateCommandQueueWithProperties)(
                device.context(),
                device.handle(),
                ptr::null(),
                &mut code,
            )
        };
        check("clCreateCommandQueueWithProperties", code)?;
        Ok(Self {
            runtime,
            queue,
            is_of_part: device.is_part(),
        })
    }

    /// Submits a launch.
    ///
    /// # Errors
    /// Fails with the runtime's code if the kernel does not accept the arguments or the shape.
    ///
    /// # Safety
    /// Until the launch is complete, everything that the kernel does with these arguments must be
    /// sound, and the memory that it uses must stay mapped. The arguments must be at least as large
    /// as the parameters, unless the runtime checks their sizes.
    pub unsafe fn launch<'a>(
        &self,
        kernel: &Kernel,
        shape: &Shape,
        arguments: impl ExactSizeIterator<Item = Argument<'a>>,
    ) -> Result<Completion, Failure> {
        let mut event = cl_event::NULL;
        let local = shape.local.as_ref();
        let submit = |kernel| {
            // SAFETY: the queue and the kernel are alive, and there are three dimensions. The
            // caller guarantees the rest.
            let code = unsafe {
                (self.runtime.library.clEnqueueNDRangeKernel)(
                    self.queue,
                    kernel,
                    3,
                    shape.offset.as_ptr(),
                    shape.global.as_ptr(),
                    local.map_or(ptr::null(), |local| local.as_ptr()),
                    0,
                    ptr::null(),
                    &mut event,
                )
            };
            check("clEnqueueNDRangeKernel", code)
        };
        kernel
            .with_arguments(arguments, submit)
            .map_err(|(_, failure)| failure)?;
        Ok(self.completion(event))
    }

    /// Ensures that all submitted commands run without further calls.
    ///
    /// # Errors
    /// Fails with the runtime's code.
    pub fn flush(&self) -> Result<(), Failure> {
        // SAFETY: the queue is alive.
        check("clFlush", unsafe {
            (self.runtime.library.clFlush)(self.queue)
        })
    }

    /// Waits until all submitted commands are complete.
    ///
    /// # Errors
    /// Fails with the runtime's code.
    pub fn finish(&self) -> Result<(), Failure> {
        // SAFETY: the queue is alive.
        check("clFinish", unsafe {
            (self.runtime.library.clFinish)(self.queue)
        })
    }

    /// Returns the work-group size that the runtime would choose, or `None` if the runtime lacks
    /// the query. The kernel's arguments from its last launch apply, if there was one.
    pub fn suggested_size(
        &self,
        kernel: &Kernel,
        offset: [usize; 3],
        global: [usize; 3],
    ) -> Option<[usize; 3]> {
        let suggest = self.runtime.extra.suggested_size?;
        let mut local = [0; 3];
        // SAFETY: the queue and the kernel are alive, and there are three dimensions.
        let code = unsafe {
            suggest(
                self.queue,
                kernel.handle(),
                3,
                offset.as_ptr(),
                global.as_ptr(),
                local.as_mut_ptr(),
            )
        };
        (code == CL_SUCCESS && !local.contains(&0)).then_some(local)
    }

    /// Returns how many work-groups of this size run at the same time, or `None` if the runtime
    /// lacks the query.
    pub fn concurrent_groups(&self, kernel: &Kernel, local: [usize; 3]) -> Option<usize> {
        let count = self.runtime.extra.concurrent_groups?;
        let mut groups = 0;
        let offset = [0; 3];
        // SAFETY: the queue and the kernel are alive, and there are three dimensions.
        let code = unsafe {
            count(
                self.queue,
                kernel.handle(),
                3,
                offset.as_ptr(),
                local.as_ptr(),
                &mut groups,
            )
        };
        (code == CL_SUCCESS).then_some(groups)
    }

    /// Takes over the event of a command.
    pub(crate) fn completion(&self, event: cl_event) -> Completion {
        Completion {
            runtime: self.runtime,
            event,
            is_of_part: self.is_of_part,
        }
    }

    /// Returns the runtime of the queue.
    pub fn runtime(&self) -> &'static Runtime {
        self.runtime
    }

    pub(crate) fn handle(&self) -> cl_command_queue {
        self.queue
    }

    /// Returns the `cl_command_queue` as a number.
    pub fn raw(&self) -> usize {
        self.queue.0.expose_provenance()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.runtime.is_elsewhere() {
            return;
        }
        // SAFETY: the queue was created for this object and is released once. Submitted commands
        // still run.
        unsafe { (self.runtime.library.clReleaseCommandQueue)(self.queue) };
    }
}

impl Completion {
    /// Waits until the command is complete. The caller must [flush](Queue::flush) the queue first
    /// if it is on a part of a device.
    ///
    /// A thread that waits inside the runtime also runs work-groups. With Intel's runtime it does
    /// so in addition to the part's compute units. Therefore a wait for a part's command blocks
    /// outside the runtime.
    ///
    /// # Errors
    /// Fails with the runtime's code if the command failed.
    pub fn wait(&self) -> Result<(), Failure> {
        if self.is_of_part {
            self.wait_outside()?;
        }
        // SAFETY: the event is alive.
        check("clWaitForEvents", unsafe {
            (self.runtime.library.clWaitForEvents)(1, &self.event)
        })
    }

    /// Waits until the runtime's callback reports that the command is complete.
    fn wait_outside(&self) -> Result<(), Failure> {
        let (teller, told) = mpsc::channel::<()>();
        let teller = Box::into_raw(Box::new(teller));
        // SAFETY: the event is alive. The runtime calls the callback once, whether the command
        // succeeds or fails, and the callback takes the sender.
        let code = unsafe {
            (self.runtime.library.clSetEventCallback)(
                self.event,
                CL_COMPLETE,
                Some(tell),
                teller.cast(),
            )
        };
        if code != CL_SUCCESS {
            // SAFETY: the sender was created above, and the failed call did not keep it.
            drop(unsafe { Box::from_raw(teller) });
            return check("clSetEventCallback", code);
        }
        // The callback drops the sender, which ends this call.
        let _ = told.recv();
        Ok(())
    }

    /// Returns whether the command is complete. A failed command is complete too.
    ///
    /// # Errors
    /// Fails with the runtime's code if the command failed.
    pub fn is_done(&self) -> Result<bool, Failure> {
        let status: cl_int = value("clGetEventInfo", |size, place, written| {
            // SAFETY: the event is alive, and `place` has room for `size` bytes.
            unsafe {
                (self.runtime.library.clGetEventInfo)(
                    self.event,
                    CL_EVENT_COMMAND_EXECUTION_STATUS,
                    size,
                    place,
                    written,
                )
            }
        })?;
        if status < 0 {
            return Err(Failure::new("clEnqueueNDRangeKernel", status));
        }
        Ok(status == CL_COMPLETE)
    }
}

/// Callback that wakes the thread that waits for a command.
///
/// # Safety
/// `teller` must be the sender from [`Completion::wait_outside`], whose ownership passes to this
/// function.
unsafe extern "C" fn tell(_event: cl_event, _status: cl_int, teller: *mut c_void) {
    // SAFETY: the caller passes the sender and its ownership.
    drop(unsafe { Box::from_raw(teller.cast::<mpsc::Sender<()>>()) });
}

impl Drop for Completion {
    fn drop(&mut self) {
        if self.runtime.is_elsewhere() {
            return;
        }
        // SAFETY: the event was created for this object and is released once.
        unsafe { (self.runtime.library.clReleaseEvent)(self.event) };
    }
}
