//! Commands that map buffer regions for the host, and unmap them.

use crate::abi::boundary::{MaybeOut, Out, entry_points, not_null};
use crate::abi::failure::Failure;
use crate::abi::object::Handle;
use crate::enqueue::submission::{Submission, WaitList};
use crate::memory::buffer::Buffer;
use crate::queue::Queue;
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_MAP_FLAGS_MASK, ur_bool_t, ur_command_t, ur_event_handle_t, ur_map_flags_t,
};

/// The reason why queues in a capture refuse these commands.
const NOT_RECORDED: &str =
    "graphs cannot record mapping: the host accesses a region once, not in each run";

entry_points! {
    pub(crate) fn map(
        queue: Handle<Queue>,
        buffer: Handle<Buffer>,
        is_blocking: ur_bool_t,
        flags: ur_map_flags_t,
        offset: usize,
        size: usize,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
        mapped: Out<*mut c_void>,
    ) {
        if flags & UR_MAP_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        let submission = Submission::new(queue, waits, event)?.not_captured(NOT_RECORDED)?;
        let (pointer, mapping, command) = buffer.map(&submission, offset, size, flags)?;
        submission.submit(ur_command_t::UR_COMMAND_MEM_BUFFER_MAP, command, is_blocking != 0)?;
        buffer.note(mapping);
        mapped.put(pointer)
    }

    pub(crate) fn unmap(
        queue: Handle<Queue>,
        buffer: Handle<Buffer>,
        pointer: *mut c_void,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        not_null(pointer)?;
        let submission = Submission::new(queue, waits, event)?.not_captured(NOT_RECORDED)?;
        let (mapping, command) = buffer.unmap(&submission, pointer)?;
        let submitted = submission.submit(ur_command_t::UR_COMMAND_MEM_UNMAP, command, false);
        if submitted.is_err() {
            buffer.note(mapping);
        }
        submitted
    }
}
