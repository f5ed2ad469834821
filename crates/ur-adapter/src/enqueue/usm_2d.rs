//! Commands on rectangles of unified shared memory.

use super::Submission;
use super::usm::range;
use crate::boundary::{enter, list, not_null};
use crate::failure::{Failure, Result};
use crosshandle::{Access, Command, MemoryRange};
use std::ffi::c_void;
use unified_runtime_sys::{
    ur_bool_t, ur_command_t, ur_event_handle_t, ur_queue_handle_t, ur_result_t,
};

/// The bytes from the start of the first row to the end of the last, `height` being positive.
///
/// # Errors
/// `INVALID_SIZE` for a pitch that is 0 or less than the width, and beyond all memory.
fn span(pitch: usize, width: usize, height: usize) -> Result<usize> {
    if pitch == 0 || pitch < width {
        return Err(Failure::SIZE);
    }
    (height - 1)
        .checked_mul(pitch)
        .and_then(|last| last.checked_add(width))
        .ok_or(Failure::SIZE)
}

pub(super) unsafe extern "C" fn memcpy(
    queue: ur_queue_handle_t,
    is_blocking: ur_bool_t,
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles and a place for one.
        let submission = unsafe { Submission::new(queue, count, waits, event) }?;
        not_null(to)?;
        not_null(from)?;
        if height == 0 {
            return Err(Failure::SIZE);
        }
        let (to_len, from_len) = (
            span(to_pitch, width, height)?,
            span(from_pitch, width, height)?,
        );
        // SAFETY: the caller vouches for the memory until the command is done.
        let (to, from) = unsafe {
            (
                range(&submission, to, to_len, Access::ReadWrite)?,
                range(&submission, from, from_len, Access::ReadOnly)?,
            )
        };
        let command = Command::copy_2d(from, from_pitch, to, to_pitch, width, height)?;
        let kind = ur_command_t::UR_COMMAND_USM_MEMCPY_2D;
        submission.submit(kind, command, is_blocking != 0)
    })
}

pub(super) unsafe extern "C" fn fill(
    queue: ur_queue_handle_t,
    start: *mut c_void,
    pitch: usize,
    pattern_size: usize,
    pattern: *const c_void,
    width: usize,
    height: usize,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles and a place for one.
        let submission = unsafe { Submission::new(queue, count, waits, event) }?;
        not_null(start)?;
        not_null(pattern)?;
        if width == 0 || height == 0 || !pattern_size.is_power_of_two() {
            return Err(Failure::SIZE);
        }
        let area = width.checked_mul(height).ok_or(Failure::SIZE)?;
        if !area.is_multiple_of(pattern_size) {
            return Err(Failure::SIZE);
        }
        // SAFETY: the caller vouches for the memory until the command is done.
        let to = unsafe {
            let len = span(pitch, width, height)?;
            range(&submission, start, len, Access::ReadWrite)?
        };
        // SAFETY: the caller passes a pattern of this size.
        let pattern = unsafe { list(pattern.cast(), pattern_size) }?;
        let rows = Rows {
            to,
            pitch,
            width,
            height,
        };
        rows.fill(submission, pattern)
    })
}

/// Rows in memory.
struct Rows {
    to: MemoryRange,
    pitch: usize,
    width: usize,
    height: usize,
}

impl Rows {
    /// Repeats a pattern from row to row, as if they were one after the other.
    fn fill(self, submission: Submission<'_>, pattern: &[u8]) -> Result<()> {
        let kind = ur_command_t::UR_COMMAND_USM_FILL_2D;
        if self.pitch == self.width {
            return submission.submit(kind, Command::fill(self.to, pattern)?, false);
        }
        // The pattern starts anew with every so many rows. Those in between are filled one kind
        // after the other, each with what of the pattern falls on it.
        let kinds = repeating_rows(self.width, pattern.len()).min(self.height);
        let bytes: Vec<u8> = match kinds {
            1 => pattern.to_vec(),
            _ => {
                let cycle = pattern.iter().copied().cycle();
                cycle.take(kinds * self.width).collect()
            }
        };
        let commands: Vec<Command> = bytes
            .chunks(bytes.len() / kinds)
            .enumerate()
            .map(|(row, bytes)| self.fill_every(kinds, row, bytes))
            .collect::<Result<_>>()?;
        submission.submit_all(kind, commands)
    }

    /// Fills each `step`-th row from `first` on.
    fn fill_every(&self, step: usize, first: usize, pattern: &[u8]) -> Result<Command> {
        let start = first * self.pitch;
        let to = self.to.range(start..)?;
        let rows = (self.height - first).div_ceil(step);
        let pitch = self.pitch.saturating_mul(step);
        Ok(Command::fill_2d(to, pitch, self.width, rows, pattern)?)
    }
}

/// After how many rows of this width a pattern, whose size is a power of two, starts with a row
/// again.
fn repeating_rows(width: usize, pattern_size: usize) -> usize {
    let common = 1 << width.trailing_zeros().min(pattern_size.trailing_zeros());
    pattern_size / common
}
