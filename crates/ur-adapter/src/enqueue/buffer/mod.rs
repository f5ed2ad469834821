//! Enqueue calls on buffers.

mod mapping;
mod rect;

pub(super) use mapping::{map, unmap};
pub(super) use rect::{Side, copy_rect, read_rect, write_rect};
pub(crate) use rect::{copy_rect_command, user_rect_command};

use super::submission::{Submission, WaitList};
use crate::abi::boundary::{MaybeOut, entry_points, list, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::Handle;
use crate::memory::buffer::Buffer;
use crate::queue::Queue;
use crate::queue::destination::Destination;
use crosshandle::{Access, Command, MemoryRange};
use std::ffi::c_void;
use std::ptr::NonNull;
use unified_runtime_sys::{ur_bool_t, ur_command_t, ur_event_handle_t};

/// Converts `len` bytes of the user's memory to an operand for a command.
///
/// # Errors
/// Returns `INVALID_NULL_POINTER` if `pointer` is null.
///
/// # Safety
/// The caller must uphold the contract of [`MemoryRange::from_raw_parts`] for the `len` bytes at
/// `pointer`.
unsafe fn user_memory(pointer: *const c_void, len: usize) -> Result<MemoryRange> {
    let start = NonNull::new(pointer.cast_mut().cast()).ok_or(Failure::NULL_POINTER)?;
    // SAFETY: the caller upholds this function's contract.
    Ok(unsafe { MemoryRange::from_raw_parts(start, len, Access::ReadWrite) })
}

/// Creates a command that copies bytes from a buffer to the user's memory.
///
/// # Errors
/// Returns `INVALID_NULL_POINTER` if `to` is null, or `INVALID_SIZE` if the bytes are not inside
/// the buffer.
///
/// # Safety
/// The caller must ensure that `to` points to `size` bytes that stay valid until the command is
/// complete.
pub(crate) unsafe fn read_command(
    destination: &dyn Destination,
    buffer: &Buffer,
    offset: usize,
    size: usize,
    to: *mut c_void,
) -> Result<Command> {
    // SAFETY: the caller upholds this function's contract.
    let to = unsafe { user_memory(to, size) }?;
    let from = buffer.range(destination, offset, size, Access::ReadOnly)?;
    Ok(Command::copy(from, to)?)
}

/// Creates a command that copies the user's memory to a buffer.
///
/// # Errors
/// Returns `INVALID_NULL_POINTER` if `from` is null, or `INVALID_SIZE` if the bytes are not inside
/// the buffer.
///
/// # Safety
/// The caller must ensure that `from` points to `size` bytes that stay valid until the command is
/// complete.
pub(crate) unsafe fn write_command(
    destination: &dyn Destination,
    buffer: &Buffer,
    offset: usize,
    size: usize,
    from: *const c_void,
) -> Result<Command> {
    // SAFETY: the caller upholds this function's contract.
    let from = unsafe { user_memory(from, size) }?;
    let to = buffer.range(destination, offset, size, Access::ReadWrite)?;
    Ok(Command::copy(from, to)?)
}

/// Creates a command that copies bytes from one buffer to another, or within a buffer.
///
/// # Errors
/// Returns `INVALID_SIZE` if the bytes are not inside the buffers.
pub(crate) fn copy_command(
    destination: &dyn Destination,
    (from, from_offset): (&Buffer, usize),
    (to, to_offset): (&Buffer, usize),
    size: usize,
) -> Result<Command> {
    let from = from.range(destination, from_offset, size, Access::ReadOnly)?;
    let to = to.range(destination, to_offset, size, Access::ReadWrite)?;
    Ok(Command::copy(from, to)?)
}

/// Creates a command that fills part of a buffer with a repeated pattern.
///
/// # Errors
/// Returns `INVALID_NULL_POINTER` if `pattern` is null. Returns `INVALID_SIZE` if the part is empty
/// or not inside the buffer, if `pattern_size` is not a power of two, or if the offset or the size
/// is not a multiple of it.
///
/// # Safety
/// The caller must ensure that a non-null `pattern` points to `pattern_size` readable bytes.
pub(crate) unsafe fn fill_command(
    destination: &dyn Destination,
    buffer: &Buffer,
    pattern: *const c_void,
    pattern_size: usize,
    offset: usize,
    size: usize,
) -> Result<Command> {
    not_null(pattern)?;
    let fits = pattern_size.is_power_of_two()
        && size != 0
        && size.is_multiple_of(pattern_size)
        && offset.is_multiple_of(pattern_size);
    if !fits {
        return Err(Failure::SIZE);
    }
    let to = buffer.range(destination, offset, size, Access::ReadWrite)?;
    // SAFETY: the caller upholds this function's contract.
    let pattern = unsafe { list(pattern.cast::<u8>(), pattern_size) }?;
    Ok(Command::fill(to, pattern)?)
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
        let submission = Submission::new(queue, waits, event)?;
        // SAFETY: the caller passes memory that stays valid until the command is complete.
        let command = unsafe { read_command(&submission, buffer, offset, size, to) }?;
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
        let submission = Submission::new(queue, waits, event)?;
        // SAFETY: the caller passes memory that stays valid until the command is complete.
        let command = unsafe { write_command(&submission, buffer, offset, size, from) }?;
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
        let submission = Submission::new(queue, waits, event)?;
        let command = copy_command(&submission, (from, from_offset), (to, to_offset), size)?;
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
        let submission = Submission::new(queue, waits, event)?;
        // SAFETY: the caller passes null or a pattern of `pattern_size` bytes.
        let command =
            unsafe { fill_command(&submission, buffer, pattern, pattern_size, offset, size) }?;
        submission.submit(ur_command_t::UR_COMMAND_MEM_BUFFER_FILL, command, false)
    }
}
