//! In-order queues of launches, and of [commands on images](crate::ImageObject).

use crate::failure::{Failure, check};
use crate::kernel::{Argument, Kernel};
use crate::runtime::value;
use crate::types::*;
use crate::{Device, Runtime};
use std::ffi::c_void;
use std::ptr;
use std::sync::mpsc;

/// A queue that runs its commands one after the other, on the runtime's threads. Dropping it lets what was
/// submitted run on.
pub struct Queue {
    runtime: &'static Runtime,
    queue: cl_command_queue,
    is_of_part: bool,
}

/// How many work-items a launch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The number of the first work-item, in each dimension.
    pub offset: [usize; 3],
    /// The number of work-items, in each dimension; none is 0.
    pub global: [usize; 3],
    /// The work-items of a work-group, in each dimension; the runtime's choice without.
    pub local: Option<[usize; 3]>,
}

/// A command under way, or done.
pub struct Completion {
    runtime: &'static Runtime,
    event: cl_event,
    is_of_part: bool,
}

impl Queue {
    /// Makes a queue on a device. It takes what was made for that, or for another part of the same whole.
    ///
    /// # Errors
    /// Fails with the runtime's code.
    pub fn new(device: &Device) -> Result<Self, Failure> {
        let runtime = device.runtime();
        let mut code = CL_SUCCESS;
        // SAFETY: context and device live; without properties, a queue is in-order.
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
    /// Fails with the runtime's code, for arguments that the kernel does not take and shapes that it cannot
    /// have.
    ///
    /// # Safety
    /// Until the launch is done, everything that the kernel does with these arguments is sound, and the
    /// memory that it uses stays mapped. The arguments are at least as large as the parameters as far as
    /// the runtime does not check.
    pub unsafe fn launch<'a>(
        &self,
        kernel: &Kernel,
        shape: &Shape,
        arguments: impl ExactSizeIterator<Item = Argument<'a>>,
    ) -> Result<Completion, Failure> {
        let mut event = cl_event::NULL;
        let local = shape.local.as_ref();
        let submit = |kernel| {
            // SAFETY: queue and kernel live, and there are three dimensions; the rest is promised to
            // this function.
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

    /// Makes sure that all that was submitted runs without further calls.
    ///
    /// # Errors
    /// Fails with the runtime's code.
    pub fn flush(&self) -> Result<(), Failure> {
        // SAFETY: the queue lives.
        check("clFlush", unsafe {
            (self.runtime.library.clFlush)(self.queue)
        })
    }

    /// Waits until all that was submitted is done.
    ///
    /// # Errors
    /// Fails with the runtime's code.
    pub fn finish(&self) -> Result<(), Failure> {
        // SAFETY: the queue lives.
        check("clFinish", unsafe {
            (self.runtime.library.clFinish)(self.queue)
        })
    }

    /// Returns the size of work-groups that the runtime would choose; `None` if it does not tell. The
    /// kernel's arguments are those of its last launch, if there was one.
    pub fn suggested_size(
        &self,
        kernel: &Kernel,
        offset: [usize; 3],
        global: [usize; 3],
    ) -> Option<[usize; 3]> {
        let suggest = self.runtime.extra.suggested_size?;
        let mut local = [0; 3];
        // SAFETY: queue and kernel live, and there are three dimensions.
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

    /// Returns the number of work-groups of a size that run at the same time; `None` if the runtime does
    /// not tell.
    pub fn concurrent_groups(&self, kernel: &Kernel, local: [usize; 3]) -> Option<usize> {
        let count = self.runtime.extra.concurrent_groups?;
        let mut groups = 0;
        let offset = [0; 3];
        // SAFETY: queue and kernel live, and there are three dimensions.
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

    /// Takes the event of a command.
    pub(crate) fn completion(&self, event: cl_event) -> Completion {
        Completion {
            runtime: self.runtime,
            event,
            is_of_part: self.is_of_part,
        }
    }

    /// Returns the runtime.
    pub fn runtime(&self) -> &'static Runtime {
        self.runtime
    }

    pub(crate) fn handle(&self) -> cl_command_queue {
        self.queue
    }

    /// Returns the `cl_command_queue`.
    pub fn raw(&self) -> usize {
        self.queue.0.expose_provenance()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.runtime.is_elsewhere() {
            return;
        }
        // SAFETY: made for this, and released once. What was submitted runs on.
        unsafe { (self.runtime.library.clReleaseCommandQueue)(self.queue) };
    }
}

impl Completion {
    /// Waits until the command is done. One of a part of a device has to be [flushed](Queue::flush) before.
    ///
    /// A thread that waits in the runtime runs groups too, with Intel's beside those of a part's
    /// compute units. So one that waits for a part waits outside of it.
    ///
    /// # Errors
    /// Fails with the runtime's code if the command failed.
    pub fn wait(&self) -> Result<(), Failure> {
        if self.is_of_part {
            self.wait_outside()?;
        }
        // SAFETY: the event lives.
        check("clWaitForEvents", unsafe {
            (self.runtime.library.clWaitForEvents)(1, &self.event)
        })
    }

    /// Waits until the runtime tells a callback that the command is done.
    fn wait_outside(&self) -> Result<(), Failure> {
        let (teller, told) = mpsc::channel::<()>();
        let teller = Box::into_raw(Box::new(teller));
        // SAFETY: the event lives; the callback is called once, whatever becomes of the command, and takes
        // the sender.
        let code = unsafe {
            (self.runtime.library.clSetEventCallback)(
                self.event,
                CL_COMPLETE,
                Some(tell),
                teller.cast(),
            )
        };
        if code != CL_SUCCESS {
            // SAFETY: made above, and nothing else has it.
            drop(unsafe { Box::from_raw(teller) });
            return check("clSetEventCallback", code);
        }
        // Dropping the sender is what tells.
        let _ = told.recv();
        Ok(())
    }

    /// Returns whether the command is done, well or not.
    ///
    /// # Errors
    /// Fails with the runtime's code if the command failed.
    pub fn is_done(&self) -> Result<bool, Failure> {
        let status: cl_int = value("clGetEventInfo", |size, place, written| {
            // SAFETY: the event lives, and the place has as many bytes.
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

/// Tells the thread that waits for a command.
///
/// # Safety
/// `teller` is the sender of [`Completion::wait_outside`], which is given up.
unsafe extern "C" fn tell(_event: cl_event, _status: cl_int, teller: *mut c_void) {
    // SAFETY: promised by the caller.
    drop(unsafe { Box::from_raw(teller.cast::<mpsc::Sender<()>>()) });
}

impl Drop for Completion {
    fn drop(&mut self) {
        if self.runtime.is_elsewhere() {
            return;
        }
        // SAFETY: made for this, and released once.
        unsafe { (self.runtime.library.clReleaseEvent)(self.event) };
    }
}
