//! Commands on buffers.

mod mapping;
mod rect;

pub(super) use mapping::{map, unmap};
pub(super) use rect::{copy_rect, read_rect, write_rect};

use super::submission::{Submission, WaitList};
use crate::abi::boundary::{MaybeOut, entry_points, list, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::Handle;
use crate::memory::buffer::Buffer;
use crate::queue::Queue;
use crosshandle::{Access, Command, MemoryRange};
use std::ffi::c_void;
use std::ptr::NonNull;
use unified_runtime_sys::{ur_bool_t, ur_command_t, ur_event_handle_t};

/// Returns memory of the user's.
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

entry_points! {
    pub(super) fn read(
        queue: Handle<Queue>,
        buffer: Handle<Buffer>,
        is_blocking: ur_bool_t,
        offset: usize,
        size: usize,
        to: *mut c_void,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        // SAFETY: the caller passes memory that is valid until the command is done.
        let to = unsafe { user_memory(to, size) }?;
        let submission = Submission::new(queue, waits, event);
        let command = Command::copy(buffer.range(queue, offset, size)?, to)?;
        submission.submit(ur_command_t::UR_COMMAND_MEM_BUFFER_READ, command, is_blocking != 0)
    }

    pub(super) fn write(
        queue: Handle<Queue>,
        buffer: Handle<Buffer>,
        is_blocking: ur_bool_t,
        offset: usize,
        size: usize,
        from: *const c_void,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        // SAFETY: the caller passes memory that is valid until the command is done.
        let from = unsafe { user_memory(from, size) }?;
        let submission = Submission::new(queue, waits, event);
        let command = Command::copy(from, buffer.range(queue, offset, size)?)?;
        submission.submit(ur_command_t::UR_COMMAND_MEM_BUFFER_WRITE, command, is_blocking != 0)
    }

    pub(super) fn copy(
        queue: Handle<Queue>,
        from: Handle<Buffer>,
        to: Handle<Buffer>,
        from_offset: usize,
        to_offset: usize,
        size: usize,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        let submission = Submission::new(queue, waits, event);
        let (from, to) = (from.range(queue, from_offset, size)?, to.range(queue, to_offset, size)?);
        let command = Command::copy(from, to)?;
        submission.submit(ur_command_t::UR_COMMAND_MEM_BUFFER_COPY, command, false)
    }

    pub(super) fn fill(
        queue: Handle<Queue>,
        buffer: Handle<Buffer>,
        pattern: *const c_void,
        pattern_size: usize,
        offset: usize,
        size: usize,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        not_null(pattern)?;
        let fits = pattern_size.is_power_of_two()
            && size != 0
            && size.is_multiple_of(pattern_size)
            && offset.is_multiple_of(pattern_size);
        if !fits {
            return Err(Failure::SIZE);
        }
        let to = buffer.range(queue, offset, size)?;
        // SAFETY: the caller passes a pattern of this size.
        let pattern = unsafe { list(pattern.cast::<u8>(), pattern_size) }?;
        let submission = Submission::new(queue, waits, event);
        let command = Command::fill(to, pattern)?;
        submission.submit(ur_command_t::UR_COMMAND_MEM_BUFFER_FILL, command, false)
    }
}
