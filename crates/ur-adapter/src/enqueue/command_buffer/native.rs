//! Native commands: commands that a function of the program appends to an object of the driver
//! while it is called. They become one command of a command buffer.
//!
//! The driver's graph of a command buffer is created only when the command buffer is finalized. So
//! the function gets an object of its own: a `CUgraph`, a command list, or a `cl_command_buffer_khr`. The next
//! native command gets another one.

use super::appended::{Appended, SyncPoints};
use super::{CommandBuffer, Phase};
use crate::abi::boundary::{MaybeOut, Out, entry_points};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, HandleList, MaybeHandle, Shared};
use crate::discovery::device::opencl_of;
use crosshandle::{Command, native::NativeRecording};
use std::ffi::c_void;
use unified_runtime_sys::{
    ur_exp_command_buffer_native_command_function_t, ur_exp_command_buffer_sync_point_t,
    ur_native_handle_t, ur_result_t,
};

impl Shared<CommandBuffer> {
    /// Checks that native commands can be appended for `parent`, of which this command buffer is a
    /// child.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` for another context or device. Returns `UNSUPPORTED_FEATURE` if
    /// the child contains commands that are not native.
    fn check_child(&self, parent: &Self) -> Result<()> {
        let is_same = std::ptr::eq(&*self.context, &*parent.context)
            && std::ptr::eq(&*self.device, &*parent.device);
        if !is_same {
            return Err(Failure::argument(
                "this child command buffer belongs to another context or device than its parent",
            ));
        }
        match self.state.lock().points.is_empty() {
            true => Ok(()),
            false => Err(Failure::unsupported(
                "a child command buffer can contain only native commands",
            )),
        }
    }

    /// Checks that commands can be appended.
    fn check_recording(&self) -> Result<()> {
        match self.state.lock().phase {
            Phase::Recording(_) => Ok(()),
            Phase::Finalizing | Phase::Final(_) => Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_OPERATION,
                "this command buffer is finalized and accepts no more commands",
            )),
        }
    }
}

entry_points! {
    /// Calls the function before this entry point returns. The commands that the function appends
    /// to the native handle of the child, or of the command buffer if there is no child, become the
    /// command.
    pub(super) fn append(
        buffer: Handle<CommandBuffer>,
        function: ur_exp_command_buffer_native_command_function_t,
        data: *mut c_void,
        child: MaybeHandle<CommandBuffer>,
        after(after_count, first_after): SyncPoints,
        sync_point: MaybeOut<ur_exp_command_buffer_sync_point_t>,
    ) {
        let function = function.ok_or(Failure::NULL_POINTER)?;
        buffer.check_recording()?;
        if let Some(child) = child {
            child.check_recording()?;
            child.check_child(buffer)?;
        }
        let target = child.unwrap_or(buffer);
        // SAFETY: the caller guarantees that the function may be called with this data.
        unsafe { function(data) };
        let recorded = target.native.lock().take();
        let command = match recorded {
            // SAFETY: the function has returned, so it appends nothing any more. The caller
            // guarantees that the memory and the kernels of its commands are valid in every run of
            // the command buffer.
            Some(recorded) => unsafe { recorded.command()? },
            None => Command::marker(),
        };
        let appended = Appended::new(after, &HandleList::empty(), sync_point, None, None)?;
        buffer.append(command, None, appended)
    }

    /// Returns the driver's object to which native commands are appended until the end of the
    /// current or next native command.
    pub(super) fn get_native_handle(
        buffer: Handle<CommandBuffer>,
        native: Out<ur_native_handle_t>,
    ) {
        buffer.check_recording()?;
        let device = buffer.device.inner();
        if device.native().is_none() && opencl_of(device).is_none() {
            return Err(Failure::unsupported(
                "without a driver, a command buffer has a native handle only if the adapter reports \
                 OpenCL and an OpenCL runtime is installed",
            ));
        }
        let context = buffer.context.on(&buffer.device)?;
        let recording = &mut *buffer.native.lock();
        let recording = match recording {
            Some(recording) => recording,
            none => none.insert(NativeRecording::new(context)?),
        };
        native.put(recording.native().raw())
    }
}
