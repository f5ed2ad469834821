//! Commands on variables of programs.

use super::Submission;
use crate::boundary::not_null;
use crate::failure::{Failure, Result};
use crate::kernel::name_of;
use crate::object::Shared;
use crate::program::{Program, enter_with_kernels};
use crosshandle::{Access, Command, MemoryRange};
use std::ffi::{c_char, c_void};
use unified_runtime_sys::{
    ur_bool_t, ur_command_t, ur_event_handle_t, ur_program_handle_t, ur_queue_handle_t, ur_result_t,
};

/// A part of a variable.
///
/// # Errors
/// `INVALID_VALUE` for one that is not there or not so large.
fn part(
    submission: &Submission<'_>,
    program: &Program,
    name: &str,
    offset: usize,
    len: usize,
) -> Result<MemoryRange> {
    let variable = program.variable(submission.queue().device(), name)?;
    let part = variable.range(offset..offset.saturating_add(len));
    part.map_err(|error| {
        Failure::from(error).with_result(ur_result_t::UR_RESULT_ERROR_INVALID_VALUE)
    })
}

pub(super) unsafe extern "C" fn write(
    queue: ur_queue_handle_t,
    program: ur_program_handle_t,
    name: *const c_char,
    is_blocking: ur_bool_t,
    len: usize,
    offset: usize,
    from: *const c_void,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter_with_kernels(|| {
        // SAFETY: the caller passes handles, a place for one, and a text.
        let (submission, program, name) = unsafe {
            (
                Submission::new(queue, count, waits, event)?,
                Shared::<Program>::from_handle(program)?,
                name_of(name)?,
            )
        };
        not_null(from)?;
        let to = part(&submission, program, &name, offset, len)?;
        // SAFETY: the caller vouches for the memory until the command is done.
        let from = unsafe { super::usm::range(&submission, from, len, Access::ReadOnly) }?;
        let kind = ur_command_t::UR_COMMAND_DEVICE_GLOBAL_VARIABLE_WRITE;
        submission.submit(kind, Command::copy(from, to)?, is_blocking != 0)
    })
}

pub(super) unsafe extern "C" fn read(
    queue: ur_queue_handle_t,
    program: ur_program_handle_t,
    name: *const c_char,
    is_blocking: ur_bool_t,
    len: usize,
    offset: usize,
    to: *mut c_void,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter_with_kernels(|| {
        // SAFETY: the caller passes handles, a place for one, and a text.
        let (submission, program, name) = unsafe {
            (
                Submission::new(queue, count, waits, event)?,
                Shared::<Program>::from_handle(program)?,
                name_of(name)?,
            )
        };
        not_null(to)?;
        let from = part(&submission, program, &name, offset, len)?;
        // SAFETY: the caller vouches for the memory until the command is done.
        let to = unsafe { super::usm::range(&submission, to, len, Access::ReadWrite) }?;
        let kind = ur_command_t::UR_COMMAND_DEVICE_GLOBAL_VARIABLE_READ;
        submission.submit(kind, Command::copy(from, to)?, is_blocking != 0)
    })
}
