//! Enqueue calls on global variables in programs.

use super::submission::{Submission, WaitList};
use super::usm::range;
use crate::abi::boundary::{MaybeOut, Text, entry_points, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::Handle;
use crate::program::{Program, enter_with_kernels};
use crate::queue::Queue;
use crosshandle::{Access, Command, MemoryRange};
use std::ffi::c_void;
use unified_runtime_sys::{ur_bool_t, ur_command_t, ur_event_handle_t, ur_result_t};

/// Returns the memory of a part of a global variable in a program.
///
/// # Errors
/// Returns `INVALID_VALUE` if the variable does not exist or the part exceeds it.
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

entry_points! {
    in enter_with_kernels;

    pub(super) fn write(
        queue: Handle<Queue>,
        program: Handle<Program>,
        name: Text,
        is_blocking: ur_bool_t,
        len: usize,
        offset: usize,
        from: *const c_void,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        not_null(from)?;
        let submission = Submission::new(queue, waits, event)?;
        let to = part(&submission, program, &name.to_string_lossy(), offset, len)?;
        // SAFETY: the caller guarantees that its memory stays valid until the command is complete.
        let from = unsafe { range(&submission, from, len, Access::ReadOnly) }?;
        let kind = ur_command_t::UR_COMMAND_DEVICE_GLOBAL_VARIABLE_WRITE;
        submission.submit(kind, Command::copy(from, to)?, is_blocking != 0)
    }

    pub(super) fn read(
        queue: Handle<Queue>,
        program: Handle<Program>,
        name: Text,
        is_blocking: ur_bool_t,
        len: usize,
        offset: usize,
        to: *mut c_void,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        not_null(to)?;
        let submission = Submission::new(queue, waits, event)?;
        let from = part(&submission, program, &name.to_string_lossy(), offset, len)?;
        // SAFETY: the caller guarantees that its memory stays valid until the command is complete.
        let to = unsafe { range(&submission, to, len, Access::ReadWrite) }?;
        let kind = ur_command_t::UR_COMMAND_DEVICE_GLOBAL_VARIABLE_READ;
        submission.submit(kind, Command::copy(from, to)?, is_blocking != 0)
    }
}
