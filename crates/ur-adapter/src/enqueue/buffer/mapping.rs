//! Commands that map regions of buffers for the host, and end that.

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
        let submission = Submission::new(queue, waits, event);
        let (pointer, mapping, command) = buffer.map(queue, offset, size, flags)?;
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
        let (mapping, command) = buffer.unmap(queue, pointer)?;
        let submission = Submission::new(queue, waits, event);
        let submitted = submission.submit(ur_command_t::UR_COMMAND_MEM_UNMAP, command, false);
        if submitted.is_err() {
            buffer.note(mapping);
        }
        submitted
    }
}
