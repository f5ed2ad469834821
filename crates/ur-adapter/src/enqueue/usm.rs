//! Commands on unified shared memory: copies, fills, and hints.

use super::submission::{Submission, WaitList};
use crate::abi::boundary::{MaybeOut, entry_points, list, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, HandleList};
use crate::queue::Queue;
use crosshandle::{Access, Command, MemoryRange};
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_USM_ADVICE_FLAGS_MASK, UR_USM_MIGRATION_FLAGS_MASK, ur_bool_t, ur_command_t,
    ur_event_handle_t, ur_usm_advice_flags_t, ur_usm_migration_flags_t,
};

/// Returns memory of an allocation, or anywhere else that the device can access.
///
/// # Errors
/// `INVALID_NULL_POINTER`; `INVALID_SIZE` beyond the end of an allocation.
///
/// # Safety
/// As [`Allocations::range`](crate::context::allocations::Allocations::range): memory outside of
/// the context's allocations must stay valid until the command is done.
pub(super) unsafe fn range(
    submission: &Submission<'_>,
    start: *const c_void,
    len: usize,
    access: Access,
) -> Result<MemoryRange> {
    let state = submission.queue().context().state();
    // SAFETY: as promised to this function.
    unsafe { state.usm.range(start, len, access) }
}

/// Refuses memory that reaches beyond the end of an allocation.
fn check_range(submission: &Submission<'_>, start: *const c_void, len: usize) -> Result<()> {
    not_null(start)?;
    if len == 0 {
        return Err(Failure::SIZE);
    }
    submission.queue().context().state().usm.check(start, len)
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
        let submission = Submission::new(queue, waits, event);
        // SAFETY: the caller vouches for the memory until the command is done.
        let (to, from) = unsafe {
            (
                range(&submission, to, size, Access::ReadWrite)?,
                range(&submission, from, size, Access::ReadOnly)?,
            )
        };
        if size == 0 {
            return Err(Failure::SIZE);
        }
        let kind = ur_command_t::UR_COMMAND_USM_MEMCPY;
        submission.submit(kind, Command::copy(from, to)?, is_blocking != 0)
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
        let submission = Submission::new(queue, waits, event);
        // SAFETY: the caller vouches for the memory until the command is done.
        let to = unsafe { range(&submission, start, size, Access::ReadWrite) }?;
        not_null(pattern)?;
        if pattern_size == 0 || size == 0 || !size.is_multiple_of(pattern_size) {
            return Err(Failure::SIZE);
        }
        // SAFETY: the caller passes a pattern of this size.
        let pattern = unsafe { list(pattern.cast(), pattern_size) }?;
        let command = Command::fill(to, pattern)?;
        submission.submit(ur_command_t::UR_COMMAND_USM_FILL, command, false)
    }

    /// The memory is where it is best already: the command only keeps its place in the order.
    pub(super) fn prefetch(
        queue: Handle<Queue>,
        start: *const c_void,
        size: usize,
        flags: ur_usm_migration_flags_t,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        not_null(start)?;
        if flags & UR_USM_MIGRATION_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        let submission = Submission::new(queue, waits, event);
        check_range(&submission, start, size)?;
        submission.submit(ur_command_t::UR_COMMAND_USM_PREFETCH, Command::marker(), false)
    }

    /// The memory is where it is best already: the command only keeps its place in the order.
    pub(super) fn advise(
        queue: Handle<Queue>,
        start: *const c_void,
        size: usize,
        advice: ur_usm_advice_flags_t,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        not_null(start)?;
        if advice & UR_USM_ADVICE_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        let submission = Submission::new(queue, HandleList::empty(), event);
        check_range(&submission, start, size)?;
        submission.submit(ur_command_t::UR_COMMAND_USM_ADVISE, Command::marker(), false)
    }
}
