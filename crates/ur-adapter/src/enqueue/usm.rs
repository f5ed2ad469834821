//! Enqueue calls on unified shared memory: copies, fills and hints.

use super::submission::{Submission, WaitList};
use crate::abi::boundary::{MaybeOut, entry_points, list, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, HandleList};
use crate::ipc::queue_events::with_attached;
use crate::queue::Queue;
use crate::queue::destination::Destination;
use crosshandle::{Access, Command, MemoryRange};
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_USM_ADVICE_FLAGS_MASK, UR_USM_MIGRATION_FLAGS_MASK, ur_bool_t, ur_command_t,
    ur_event_handle_t, ur_usm_advice_flags_t, ur_usm_migration_flags_t,
};

/// Returns a memory range for a command. The memory belongs to an allocation of the context, or is
/// other memory that the device can access.
///
/// # Errors
/// Returns `INVALID_NULL_POINTER` if `start` is null, and `INVALID_SIZE` if the range exceeds an
/// allocation.
///
/// # Safety
/// The caller must uphold the contract of
/// [`Allocations::range`](crate::context::allocations::Allocations::range). Memory outside the
/// context's allocations must stay valid until the command is complete.
pub(super) unsafe fn range(
    destination: &dyn Destination,
    start: *const c_void,
    len: usize,
    access: Access,
) -> Result<MemoryRange> {
    let state = destination.context().state();
    // SAFETY: the caller upholds this function's contract.
    unsafe {
        state
            .usm
            .range(start, len, access, destination.is_recording())
    }
}

/// Checks that a memory range is not empty and does not exceed an allocation.
fn check_range(destination: &dyn Destination, start: *const c_void, len: usize) -> Result<()> {
    not_null(start)?;
    if len == 0 {
        return Err(Failure::SIZE);
    }
    destination.context().state().usm.check(start, len)
}

/// Creates a command that copies memory.
///
/// # Errors
/// Returns the same errors as [`range`], and `INVALID_SIZE` if `size` is 0.
///
/// # Safety
/// The caller must uphold the contract of [`range`] for both memory ranges.
pub(crate) unsafe fn copy_command(
    destination: &dyn Destination,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
) -> Result<Command> {
    // SAFETY: the caller upholds this function's contract.
    let (to, from) = unsafe {
        (
            range(destination, to, size, Access::ReadWrite)?,
            range(destination, from, size, Access::ReadOnly)?,
        )
    };
    if size == 0 {
        return Err(Failure::SIZE);
    }
    Ok(Command::copy(from, to)?)
}

/// Creates a command that fills memory with a repeated pattern.
///
/// # Errors
/// Returns the same errors as [`range`]. Returns `INVALID_NULL_POINTER` if `pattern` is null.
/// Returns `INVALID_SIZE` if a size is 0, or if `size` is not a multiple of `pattern_size`.
///
/// # Safety
/// The caller must uphold the contract of [`range`]. A non-null `pattern` must point to
/// `pattern_size` readable bytes.
pub(crate) unsafe fn fill_command(
    destination: &dyn Destination,
    start: *mut c_void,
    pattern: *const c_void,
    pattern_size: usize,
    size: usize,
) -> Result<Command> {
    // SAFETY: the caller upholds this function's contract.
    let to = unsafe { range(destination, start, size, Access::ReadWrite) }?;
    not_null(pattern)?;
    if pattern_size == 0 || size == 0 || !size.is_multiple_of(pattern_size) {
        return Err(Failure::SIZE);
    }
    // SAFETY: the caller upholds this function's contract.
    let pattern = unsafe { list(pattern.cast(), pattern_size) }?;
    Ok(Command::fill(to, pattern)?)
}

/// Creates the command for a prefetch or for advice.
///
/// The command does no work, because memory never moves. It only takes part in the order of the
/// queue. `unknown` contains the flags that the call does not support.
///
/// # Errors
/// Returns `INVALID_NULL_POINTER` if `start` is null, and `INVALID_ENUMERATION` if `unknown` is not
/// 0. Returns `INVALID_SIZE` if `size` is 0 or the memory exceeds its allocation.
pub(crate) fn hint_command(
    destination: &dyn Destination,
    start: *const c_void,
    size: usize,
    unknown: u32,
) -> Result<Command> {
    not_null(start)?;
    if unknown != 0 {
        return Err(Failure::ENUMERATION);
    }
    check_range(destination, start, size)?;
    Ok(Command::marker())
}

entry_points! {
    pub(super) fn memcpy(
        queue: Handle<Queue>,
        is_blocking: ur_bool_t,
        to: *mut c_void,
        from: *const c_void,
        size: usize,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        let submission = Submission::new(queue, waits, event)?;
        // SAFETY: the caller guarantees that its memory stays valid until the command is complete.
        let command = unsafe { copy_command(&submission, to, from, size) }?;
        let kind = ur_command_t::UR_COMMAND_USM_MEMCPY;
        with_attached(queue, || submission.submit(kind, command, is_blocking != 0))
    }

    pub(super) fn fill(
        queue: Handle<Queue>,
        start: *mut c_void,
        pattern_size: usize,
        pattern: *const c_void,
        size: usize,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        let submission = Submission::new(queue, waits, event)?;
        // SAFETY: the caller guarantees that its memory stays valid until the command is complete.
        // It passes null or a pattern of `pattern_size` bytes.
        let command = unsafe { fill_command(&submission, start, pattern, pattern_size, size) }?;
        submission.submit(ur_command_t::UR_COMMAND_USM_FILL, command, false)
    }

    pub(super) fn prefetch(
        queue: Handle<Queue>,
        start: *const c_void,
        size: usize,
        flags: ur_usm_migration_flags_t,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        let submission = Submission::new(queue, waits, event)?;
        let unknown = flags & UR_USM_MIGRATION_FLAGS_MASK;
        let command = hint_command(&submission, start, size, unknown)?;
        submission.submit(ur_command_t::UR_COMMAND_USM_PREFETCH, command, false)
    }

    pub(super) fn advise(
        queue: Handle<Queue>,
        start: *const c_void,
        size: usize,
        advice: ur_usm_advice_flags_t,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        let submission = Submission::new(queue, HandleList::empty(), event)?;
        let command = hint_command(&submission, start, size, advice & UR_USM_ADVICE_FLAGS_MASK)?;
        submission.submit(ur_command_t::UR_COMMAND_USM_ADVISE, command, false)
    }
}
