//! Commands that map regions of buffers for the host, and end that.

use crate::boundary::{enter, not_null, put};
use crate::buffer::Buffer;
use crate::enqueue::Submission;
use crate::failure::Failure;
use crate::object::Shared;
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_MAP_FLAGS_MASK, ur_bool_t, ur_command_t, ur_event_handle_t, ur_map_flags_t, ur_mem_handle_t,
    ur_queue_handle_t, ur_result_t,
};

pub(in crate::enqueue) unsafe extern "C" fn map(
    queue: ur_queue_handle_t,
    buffer: ur_mem_handle_t,
    is_blocking: ur_bool_t,
    flags: ur_map_flags_t,
    offset: usize,
    size: usize,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
    mapped: *mut *mut c_void,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles.
        let (submission, buffer) = unsafe {
            (
                Submission::new(queue, count, waits, event)?,
                Shared::<Buffer>::from_handle(buffer)?,
            )
        };
        not_null(mapped)?;
        if flags & UR_MAP_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        let (pointer, mapping, command) = buffer.map(offset, size, flags)?;
        submission.submit(
            ur_command_t::UR_COMMAND_MEM_BUFFER_MAP,
            command,
            is_blocking != 0,
        )?;
        buffer.note(mapping);
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(mapped, pointer) }
    })
}

pub(in crate::enqueue) unsafe extern "C" fn unmap(
    queue: ur_queue_handle_t,
    buffer: ur_mem_handle_t,
    pointer: *mut c_void,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles.
        let (submission, buffer) = unsafe {
            (
                Submission::new(queue, count, waits, event)?,
                Shared::<Buffer>::from_handle(buffer)?,
            )
        };
        not_null(pointer)?;
        let (mapping, command) = buffer.unmap(pointer)?;
        let submitted = submission.submit(ur_command_t::UR_COMMAND_MEM_UNMAP, command, false);
        if submitted.is_err() {
            buffer.note(mapping);
        }
        submitted
    })
}
