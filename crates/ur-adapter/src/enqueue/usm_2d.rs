//! Enqueue calls on rectangles in unified shared memory.

use super::submission::{Submission, WaitList};
use super::usm::range;
use crate::abi::boundary::{MaybeOut, entry_points, list, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::Handle;
use crate::queue::Queue;
use crosshandle::{Access, Command, MemoryRange};
use std::ffi::c_void;
use unified_runtime_sys::{ur_bool_t, ur_command_t, ur_event_handle_t};

/// Returns the distance in bytes from the start of the first row to the end of the last row.
/// `height` must be positive.
///
/// # Errors
/// Returns `INVALID_SIZE` if the pitch is 0 or smaller than the width, or if the result exceeds the
/// address space.
fn span(pitch: usize, width: usize, height: usize) -> Result<usize> {
    if pitch == 0 || pitch < width {
        return Err(Failure::SIZE);
    }
    (height - 1)
        .checked_mul(pitch)
        .and_then(|last| last.checked_add(width))
        .ok_or(Failure::SIZE)
}

/// Returns the memory range that contains the rows of a rectangle.
///
/// # Errors
/// Returns `INVALID_NULL_POINTER` if `start` is null. Returns `INVALID_SIZE` if `height` rows of
/// `pitch` bytes exceed the allocation. Otherwise returns the same errors as [`span`].
///
/// # Safety
/// The caller must uphold the contract of [`range`].
unsafe fn rows(
    submission: &Submission<'_>,
    start: *const c_void,
    (pitch, width, height): (usize, usize, usize),
    access: Access,
) -> Result<MemoryRange> {
    not_null(start)?;
    let len = span(pitch, width, height)?;
    let usm = &submission.queue().context().state().usm;
    usm.check_pitch(start, pitch, height)?;
    // SAFETY: the caller upholds this function's contract.
    unsafe { range(submission, start, len, access) }
}

entry_points! {
    pub(super) fn memcpy(
        queue: Handle<Queue>,
        is_blocking: ur_bool_t,
        to: *mut c_void,
        to_pitch: usize,
        from: *const c_void,
        from_pitch: usize,
        width: usize,
        height: usize,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        not_null(to)?;
        not_null(from)?;
        if height == 0 {
            return Err(Failure::SIZE);
        }
        let submission = Submission::new(queue, waits, event)?;
        // SAFETY: the caller guarantees that its memory stays valid until the command is complete.
        let (to, from) = unsafe {
            (
                rows(&submission, to, (to_pitch, width, height), Access::ReadWrite)?,
                rows(&submission, from, (from_pitch, width, height), Access::ReadOnly)?,
            )
        };
        let command = Command::copy_2d(from, from_pitch, to, to_pitch, width, height)?;
        submission.submit(ur_command_t::UR_COMMAND_USM_MEMCPY_2D, command, is_blocking != 0)
    }

    pub(super) fn fill(
        queue: Handle<Queue>,
        start: *mut c_void,
        pitch: usize,
        pattern_size: usize,
        pattern: *const c_void,
        width: usize,
        height: usize,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        not_null(start)?;
        not_null(pattern)?;
        if width == 0 || height == 0 || !pattern_size.is_power_of_two() {
            return Err(Failure::SIZE);
        }
        let area = width.checked_mul(height).ok_or(Failure::SIZE)?;
        if !area.is_multiple_of(pattern_size) {
            return Err(Failure::SIZE);
        }
        let submission = Submission::new(queue, waits, event)?;
        // SAFETY: the caller guarantees that its memory stays valid until the command is complete.
        let to = unsafe { rows(&submission, start, (pitch, width, height), Access::ReadWrite) }?;
        // SAFETY: the caller passes a pattern of `pattern_size` bytes.
        let pattern = unsafe { list(pattern.cast(), pattern_size) }?;
        let rows = Rows { to, pitch, width, height };
        rows.fill(submission, pattern)
    }
}

/// A rectangle in memory: its memory range, and its sizes in bytes and rows.
struct Rows {
    to: MemoryRange,
    pitch: usize,
    width: usize,
    height: usize,
}

impl Rows {
    /// Fills the rectangle with a repeated pattern. The pattern continues from the end of each row
    /// at the start of the next row.
    fn fill(self, submission: Submission<'_>, pattern: &[u8]) -> Result<()> {
        let kind = ur_command_t::UR_COMMAND_USM_FILL_2D;
        if self.pitch == self.width {
            return submission.submit(kind, Command::fill(self.to, pattern)?, false);
        }
        // After `kinds` rows, the pattern again starts at the beginning of a row. All rows that
        // contain the same part of the pattern are filled by one command.
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

    /// Creates the command that fills every `step`-th row, starting with row `first`.
    fn fill_every(&self, step: usize, first: usize, pattern: &[u8]) -> Result<Command> {
        let start = first * self.pitch;
        let to = self.to.range(start..)?;
        let rows = (self.height - first).div_ceil(step);
        let pitch = self.pitch.saturating_mul(step);
        Ok(Command::fill_2d(to, pitch, self.width, rows, pattern)?)
    }
}

/// Returns the number of rows after which the pattern again starts at the beginning of a row.
/// `pattern_size` must be a power of two.
fn repeating_rows(width: usize, pattern_size: usize) -> usize {
    let common = 1 << width.trailing_zeros().min(pattern_size.trailing_zeros());
    pattern_size / common
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::usm::{Request, allocate};
    use crate::testing::Scene;
    use crosshandle::MemoryKind;
    use std::ptr::{null, null_mut};
    use unified_runtime_sys::ur_result_t;

    #[test]
    fn a_pitch_that_passes_the_end_is_refused() {
        let scene = Scene::new();
        let context = scene.context();
        let request = Request {
            kind: MemoryKind::Device,
            len: 400,
            align: 0,
        };
        let memory = || allocate(context, context.first().0, None, &request).expect("memory");
        let (queue, from, to) = (scene.queue, memory(), memory());
        let copy = |to_pitch, from_pitch, height| {
            let (width, event) = (50, null_mut());
            // SAFETY: the handles are alive, and both addresses are in allocations that outlive the
            // command.
            unsafe {
                memcpy(
                    queue,
                    1,
                    to,
                    to_pitch,
                    from,
                    from_pitch,
                    width,
                    height,
                    0,
                    null(),
                    event,
                )
            }
        };
        let fill = |pitch, height| {
            let (width, pattern, event) = (50, [1_u8].as_ptr().cast(), null_mut());
            // SAFETY: the handles are alive, the address is in an allocation that outlives the
            // command, and the pattern is a constant.
            unsafe {
                fill(
                    queue,
                    to,
                    pitch,
                    1,
                    pattern,
                    width,
                    height,
                    0,
                    null(),
                    event,
                )
            }
        };
        let ok = ur_result_t::UR_RESULT_SUCCESS;
        let size = ur_result_t::UR_RESULT_ERROR_INVALID_SIZE;
        assert_eq!((copy(100, 100, 4), fill(100, 4)), (ok, ok));
        // These copies are refused only because the size of the last row includes its padding.
        assert_eq!((copy(101, 100, 4), copy(100, 101, 4)), (size, size));
        assert_eq!((copy(401, 100, 1), copy(100, 401, 1)), (size, size));
        assert_eq!((fill(101, 4), fill(401, 1)), (size, size));
        assert_eq!(fill(usize::MAX, 2), size);
        scene.finish();
        for memory in [from, to] {
            context.state().usm.free(memory).expect("it was allocated");
        }
    }
}
