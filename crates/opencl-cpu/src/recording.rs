//! Commands that the program records by calling the runtime, and views of the program's memory for
//! them.

use crate::failure::{Failure, check};
use crate::queue::Queue;
use crate::types::*;
use crate::{Device, Runtime};
use std::ptr::{self, NonNull};

/// The functions of `cl_khr_command_buffer` that this crate calls.
#[derive(Clone, Copy)]
pub(crate) struct RecordingFunctions {
    pub(crate) create: CreateRecording,
    pub(crate) finalize: FinishRecording,
    pub(crate) enqueue: EnqueueRecording,
    pub(crate) release: FinishRecording,
}

/// The type of `clCreateCommandBufferKHR`.
pub(crate) type CreateRecording = unsafe extern "C" fn(
    cl_uint,
    *const cl_command_queue,
    *const cl_bitfield,
    *mut cl_int,
) -> cl_command_buffer_khr;

/// The type of `clFinalizeCommandBufferKHR` and `clReleaseCommandBufferKHR`.
pub(crate) type FinishRecording = unsafe extern "C" fn(cl_command_buffer_khr) -> cl_int;

/// The type of `clEnqueueCommandBufferKHR`.
pub(crate) type EnqueueRecording = unsafe extern "C" fn(
    cl_uint,
    *mut cl_command_queue,
    cl_command_buffer_khr,
    cl_uint,
    *const cl_event,
    *mut cl_event,
) -> cl_int;

/// A `cl_command_buffer_khr`, to which the program appends commands, and a queue that runs it.
pub struct Recording {
    functions: RecordingFunctions,
    queue: Queue,
    buffer: cl_command_buffer_khr,
}

impl Recording {
    /// Creates an empty recording. Returns `None` if the runtime lacks `cl_khr_command_buffer`.
    ///
    /// # Errors
    /// Fails with the runtime's code.
    pub fn new(device: &Device) -> Result<Option<Self>, Failure> {
        let Some(functions) = device.runtime().extra.recordings else {
            return Ok(None);
        };
        let queue = Queue::new(device)?;
        let mut code = CL_SUCCESS;
        // SAFETY: the queue is alive, and a null pointer means no properties.
        let buffer = unsafe { (functions.create)(1, &queue.handle(), ptr::null(), &mut code) };
        check("clCreateCommandBufferKHR", code)?;
        Ok(Some(Self {
            functions,
            queue,
            buffer,
        }))
    }

    /// Returns the `cl_command_buffer_khr` as a number.
    pub fn raw(&self) -> usize {
        self.buffer.0.expose_provenance()
    }

    /// Ends the recording. The program appends nothing afterwards.
    ///
    /// # Errors
    /// Fails with the runtime's code.
    pub fn finish(&self) -> Result<(), Failure> {
        // SAFETY: the command buffer is alive.
        check("clFinalizeCommandBufferKHR", unsafe {
            (self.functions.finalize)(self.buffer)
        })
    }

    /// Runs the recorded commands, and waits until they are complete. Two runs must not overlap.
    ///
    /// # Errors
    /// Fails with the runtime's code.
    ///
    /// # Safety
    /// Everything that the recorded commands use is valid until the call returns.
    pub unsafe fn run(&self) -> Result<(), Failure> {
        let mut event = cl_event::NULL;
        // SAFETY: the command buffer is alive and finalized, and without queues it runs in its own.
        // The caller guarantees the rest.
        let code = unsafe {
            (self.functions.enqueue)(0, ptr::null_mut(), self.buffer, 0, ptr::null(), &mut event)
        };
        check("clEnqueueCommandBufferKHR", code)?;
        let completion = self.queue.completion(event);
        self.queue.flush()?;
        completion.wait()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.queue.runtime().is_elsewhere() {
            return;
        }
        // SAFETY: the command buffer was created for this object and is released once. Each run has
        // ended.
        unsafe { (self.functions.release)(self.buffer) };
    }
}

/// A `cl_mem` for memory of the program, which the runtime uses in place.
pub struct MemoryObject {
    runtime: &'static Runtime,
    memory: cl_mem,
}

impl MemoryObject {
    /// Creates a `cl_mem` for `len` bytes at `start`.
    ///
    /// # Errors
    /// Fails with the runtime's code.
    ///
    /// # Safety
    /// The memory stays valid for reads and writes until this object is dropped and no command of
    /// the runtime uses the `cl_mem`.
    pub unsafe fn new(device: &Device, start: NonNull<u8>, len: usize) -> Result<Self, Failure> {
        let runtime = device.runtime();
        let flags = CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR;
        let mut code = CL_SUCCESS;
        // SAFETY: the context is alive, and the caller guarantees that the memory is valid.
        let memory = unsafe {
            (runtime.library.clCreateBuffer)(
                device.context(),
                flags,
                len,
                start.as_ptr().cast(),
                &mut code,
            )
        };
        check("clCreateBuffer", code)?;
        Ok(Self { runtime, memory })
    }

    /// Returns the `cl_mem` as a number.
    pub fn raw(&self) -> usize {
        self.memory.0.expose_provenance()
    }
}

impl Drop for MemoryObject {
    fn drop(&mut self) {
        if self.runtime.is_elsewhere() {
            return;
        }
        // SAFETY: the `cl_mem` was created here and is released once. Commands have their own
        // references.
        unsafe { (self.runtime.library.clReleaseMemObject)(self.memory) };
    }
}
