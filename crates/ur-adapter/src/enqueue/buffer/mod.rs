//! Commands on buffers.

mod mapping;
mod rect;

pub(super) use mapping::{map, unmap};
pub(super) use rect::{copy_rect, read_rect, write_rect};

use super::Submission;
use crate::boundary::{enter, list};
use crate::buffer::Buffer;
use crate::failure::{Failure, Result};
use crate::object::Shared;
use crosshandle::{Access, Command, MemoryRange};
use std::ffi::c_void;
use std::ptr::NonNull;
use unified_runtime_sys::{
    ur_bool_t, ur_command_t, ur_event_handle_t, ur_mem_handle_t, ur_queue_handle_t, ur_result_t,
};

/// Memory of the user's.
///
/// # Errors
/// `INVALID_NULL_POINTER`.
///
/// # Safety
/// As [`MemoryRange::from_raw_parts`], from the pointer on.
unsafe fn user_memory(pointer: *const c_void, len: usize) -> Result<MemoryRange> {
    let start = NonNull::new(pointer.cast_mut().cast()).ok_or(Failure::NULL_POINTER)?;
    // SAFETY: as promised to this function.
    Ok(unsafe { MemoryRange::from_raw_parts(start, len, Access::ReadWrite) })
}

pub(super) unsafe extern "C" fn read(
    queue: ur_queue_handle_t,
    buffer: ur_mem_handle_t,
    is_blocking: ur_bool_t,
    offset: usize,
    size: usize,
    to: *mut c_void,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles, and memory that is valid until the command is done.
        let (submission, buffer, to) = unsafe {
            (
                Submission::new(queue, count, waits, event)?,
                Shared::<Buffer>::from_handle(buffer)?,
                user_memory(to, size)?,
            )
        };
        let command = Command::copy(buffer.range(offset, size)?, to)?;
        submission.submit(
            ur_command_t::UR_COMMAND_MEM_BUFFER_READ,
            command,
            is_blocking != 0,
        )
    })
}

pub(super) unsafe extern "C" fn write(
    queue: ur_queue_handle_t,
    buffer: ur_mem_handle_t,
    is_blocking: ur_bool_t,
    offset: usize,
    size: usize,
    from: *const c_void,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles, and memory that is valid until the command is done.
        let (submission, buffer, from) = unsafe {
            (
                Submission::new(queue, count, waits, event)?,
                Shared::<Buffer>::from_handle(buffer)?,
                user_memory(from, size)?,
            )
        };
        let command = Command::copy(from, buffer.range(offset, size)?)?;
        submission.submit(
            ur_command_t::UR_COMMAND_MEM_BUFFER_WRITE,
            command,
            is_blocking != 0,
        )
    })
}

pub(super) unsafe extern "C" fn copy(
    queue: ur_queue_handle_t,
    from: ur_mem_handle_t,
    to: ur_mem_handle_t,
    from_offset: usize,
    to_offset: usize,
    size: usize,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles.
        let (submission, from, to) = unsafe {
            (
                Submission::new(queue, count, waits, event)?,
                Shared::<Buffer>::from_handle(from)?,
                Shared::<Buffer>::from_handle(to)?,
            )
        };
        let command = Command::copy(from.range(from_offset, size)?, to.range(to_offset, size)?)?;
        submission.submit(ur_command_t::UR_COMMAND_MEM_BUFFER_COPY, command, false)
    })
}

pub(super) unsafe extern "C" fn fill(
    queue: ur_queue_handle_t,
    buffer: ur_mem_handle_t,
    pattern: *const c_void,
    pattern_size: usize,
    offset: usize,
    size: usize,
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
        if pattern.is_null() {
            return Err(Failure::NULL_POINTER);
        }
        let fits = pattern_size.is_power_of_two()
            && size != 0
            && size.is_multiple_of(pattern_size)
            && offset.is_multiple_of(pattern_size);
        if !fits {
            return Err(Failure::SIZE);
        }
        let to = buffer.range(offset, size)?;
        // SAFETY: the caller passes a pattern of this size.
        let pattern = unsafe { list(pattern.cast::<u8>(), pattern_size) }?;
        let command = Command::fill(to, pattern)?;
        submission.submit(ur_command_t::UR_COMMAND_MEM_BUFFER_FILL, command, false)
    })
}
