//! Commands on unified shared memory: copies, fills, and hints.

use super::Submission;
use crate::boundary::{enter, list, not_null};
use crate::failure::{Failure, Result};
use crosshandle::{Access, Command, MemoryRange};
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_USM_ADVICE_FLAGS_MASK, UR_USM_MIGRATION_FLAGS_MASK, ur_bool_t, ur_command_t,
    ur_event_handle_t, ur_queue_handle_t, ur_result_t, ur_usm_advice_flags_t,
    ur_usm_migration_flags_t,
};

/// Memory of an allocation, or anywhere else that the device can access.
///
/// # Errors
/// `INVALID_NULL_POINTER`; `INVALID_SIZE` beyond the end of an allocation.
///
/// # Safety
/// What is not of an allocation of the queue's context must stay valid until the command is done.
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

pub(super) unsafe extern "C" fn memcpy(
    queue: ur_queue_handle_t,
    is_blocking: ur_bool_t,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles and a place for one.
        let submission = unsafe { Submission::new(queue, count, waits, event) }?;
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
    })
}

pub(super) unsafe extern "C" fn fill(
    queue: ur_queue_handle_t,
    start: *mut c_void,
    pattern_size: usize,
    pattern: *const c_void,
    size: usize,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles and a place for one.
        let submission = unsafe { Submission::new(queue, count, waits, event) }?;
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
    })
}

/// The memory is where it is best already; what is left of the command is its place in the order.
pub(super) unsafe extern "C" fn prefetch(
    queue: ur_queue_handle_t,
    start: *const c_void,
    size: usize,
    flags: ur_usm_migration_flags_t,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles and a place for one.
        let submission = unsafe { Submission::new(queue, count, waits, event) }?;
        not_null(start)?;
        if flags & UR_USM_MIGRATION_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        if size == 0 {
            return Err(Failure::SIZE);
        }
        // SAFETY: only looked at, not used.
        unsafe { range(&submission, start, size, Access::ReadOnly) }?;
        submission.submit(
            ur_command_t::UR_COMMAND_USM_PREFETCH,
            Command::marker(),
            false,
        )
    })
}

/// As [`prefetch`].
pub(super) unsafe extern "C" fn advise(
    queue: ur_queue_handle_t,
    start: *const c_void,
    size: usize,
    advice: ur_usm_advice_flags_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles and a place for one.
        let submission = unsafe { Submission::new(queue, 0, std::ptr::null(), event) }?;
        not_null(start)?;
        if advice & UR_USM_ADVICE_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        if size == 0 {
            return Err(Failure::SIZE);
        }
        // SAFETY: only looked at, not used.
        unsafe { range(&submission, start, size, Access::ReadOnly) }?;
        submission.submit(
            ur_command_t::UR_COMMAND_USM_ADVISE,
            Command::marker(),
            false,
        )
    })
}
