//! Commands that run on the host: host functions, native commands and timestamps.

use super::submission::{Submission, WaitList};
use crate::abi::boundary::{List, MaybeIn, MaybeOut, entry_points};
use crate::abi::failure::Failure;
use crate::abi::object::Handle;
use crate::queue::Queue;
use crate::queue::host_function::HostFunction;
use crosshandle::Command;
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_EXP_ENQUEUE_NATIVE_COMMAND_FLAGS_MASK, UR_EXP_HOST_TASK_FLAGS_MASK, ur_bool_t, ur_command_t,
    ur_event_handle_t, ur_exp_enqueue_native_command_function_t,
    ur_exp_enqueue_native_command_properties_t, ur_exp_host_task_function_t,
    ur_exp_host_task_properties_t, ur_mem_handle_t,
};

entry_points! {
    pub(super) fn task(
        queue: Handle<Queue>,
        function: ur_exp_host_task_function_t,
        data: *mut c_void,
        properties: MaybeIn<ur_exp_host_task_properties_t>,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        let function = function.ok_or(Failure::NULL_POINTER)?;
        let flags = properties.map_or(0, |properties| properties.flags);
        if flags & UR_EXP_HOST_TASK_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        let submission = Submission::new(queue, waits, event)?;
        // SAFETY: the caller allows one call of the function on a thread of the queue, as UR
        // specifies. If the queue is being captured, the caller allows a call in each run of the
        // graph.
        let function = unsafe { HostFunction::new(function, data) };
        let command = match submission.capture() {
            Some(_) => Command::call_repeatedly(move || function.run()),
            None => Command::call(move || function.run()),
        };
        submission.submit(ur_command_t::UR_COMMAND_HOST_TASK_EXP, command, false)
    }

    /// Calls the function before this entry point returns.
    ///
    /// Commands that the function submits to the queue run after the wait events, and before the
    /// returned event. Buffers need no preparation, because only commands access them.
    pub(super) fn native_command(
        queue: Handle<Queue>,
        function: ur_exp_enqueue_native_command_function_t,
        data: *mut c_void,
        buffers(buffer_count, first_buffer): List<ur_mem_handle_t>,
        properties: MaybeIn<ur_exp_enqueue_native_command_properties_t>,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        let function = function.ok_or(Failure::NULL_POINTER)?;
        let flags = properties.map_or(0, |properties| properties.flags);
        if flags & UR_EXP_ENQUEUE_NATIVE_COMMAND_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        let mut submission = Submission::new(queue, waits, event)?
            .not_captured("graphs cannot record native commands, because the adapter does not know what they submit")?
            .before_later();
        let inner = queue.inner();
        if inner.native().is_some() {
            // The function may submit to the driver's queue directly. The barriers must therefore
            // be in the driver's queue.
            submission = submission.after_earlier();
        }
        inner.submit(submission.ordered(Command::marker())?)?;
        // SAFETY: the caller guarantees that the function may be called with this queue and this
        // data.
        unsafe { function(queue.handle(), data) };
        if !submission.wants_event() {
            return Ok(());
        }
        let kind = ur_command_t::UR_COMMAND_ENQUEUE_NATIVE_EXP;
        submission.end_of_earlier().submit(kind, Command::marker(), false)
    }

    pub(super) fn timestamp(
        queue: Handle<Queue>,
        is_blocking: ur_bool_t,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        if event.is_none() {
            return Err(Failure::NULL_POINTER);
        }
        let submission = Submission::new(queue, waits, event)?
            .not_captured("graphs cannot record timestamps, because events of nodes have no timestamps")?
            .with_timestamps();
        let kind = ur_command_t::UR_COMMAND_TIMESTAMP_RECORDING_EXP;
        submission.submit(kind, Command::marker(), is_blocking != 0)
    }
}
