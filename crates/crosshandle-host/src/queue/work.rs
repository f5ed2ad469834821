//! The work of commands, which the host backend does in host memory.

use crate::program::Launcher;
use crosshandle_hal::common::user_code;
use crosshandle_hal::{Operand, RectCopy, Work};
use crosshandle_types::Pitches;
use crosshandle_types::error::Result;
use crosshandle_types::observe::trace::{self, Step};
use crosshandle_types::shared_bytes::shared_copy;
use std::mem;

/// Returns whether a command accesses at most `limit` bytes and calls none of the program's code.
pub(super) fn is_short(work: &Work, limit: usize) -> bool {
    match work {
        Work::Graph(run) => {
            let mut left = limit;
            run.works().all(|work| {
                let rest = bytes(work).and_then(|bytes| left.checked_sub(bytes));
                left = rest.unwrap_or_default();
                rest.is_some()
            })
        }
        work => bytes(work).is_some_and(|bytes| bytes <= limit),
    }
}

/// Returns the number of bytes that work accesses, if it calls none of the program's code.
fn bytes(work: &Work) -> Option<usize> {
    match work {
        Work::Marker => Some(0),
        Work::Copy { len, .. } | Work::Fill { len, .. } => Some(*len),
        Work::CopyRect(copy) => Some(copy.region.bytes()),
        Work::Fill2d(fill) => Some(fill.width.saturating_mul(fill.rows)),
        Work::Call(_)
        | Work::Native(_)
        | Work::Launch(_)
        | Work::CopyImage(_)
        | Work::Graph(_)
        | Work::Recorded(_) => None,
    }
}

/// Runs a command, and leaves the objects that keep its memory. The queue's `launcher` runs
/// kernels.
pub(super) fn run(work: &mut Work, launcher: &Launcher) -> Result<()> {
    match work {
        Work::Call(_) => match mem::take(work) {
            Work::Call(function) => user_code::call(function),
            _ => Ok(()),
        },
        work => run_repeatable(work, launcher),
    }
}

/// Runs a command without changing it, so that it can be run again.
fn run_repeatable(work: &Work, launcher: &Launcher) -> Result<()> {
    match work {
        // The object layer refuses `Native` for backends without a driver, `Recorded` is only for
        // graphs of drivers, and `run` handles `Call`.
        Work::Marker | Work::Native(_) | Work::Call(_) | Work::Recorded(_) => Ok(()),
        Work::Graph(run) => {
            let mut works = run.works();
            works.try_for_each(|work| run_repeatable(work, launcher))
        }
        Work::Launch(launch) => launcher.run(launch),
        Work::CopyImage(copy) => launcher.copy_image(copy),
        Work::Copy { to, from, len } => {
            let begun = trace::begin();
            copy(to, 0, from, 0, *len);
            begun.end(|| Step::Copy(*len));
            Ok(())
        }
        Work::CopyRect(rect) => {
            let RectCopy {
                to,
                to_pitches,
                from,
                from_pitches,
                region,
            } = &**rect;
            let begun = trace::begin();
            for slice in 0..region.slices {
                for row in 0..region.rows {
                    let offset = |pitches: Pitches| slice * pitches.slice + row * pitches.row;
                    let (to_offset, from_offset) = (offset(*to_pitches), offset(*from_pitches));
                    copy(to, to_offset, from, from_offset, region.width);
                }
            }
            begun.end(|| Step::Copy(region.bytes()));
            Ok(())
        }
        Work::Fill { to, len, pattern } => {
            fill(to, 0, *len, pattern);
            Ok(())
        }
        Work::Fill2d(rows) => {
            for row in 0..rows.rows {
                fill(&rows.to, row * rows.pitch, rows.width, &rows.pattern);
            }
            Ok(())
        }
    }
}

/// Copies between ranges that may overlap.
fn copy(to: &Operand, to_offset: usize, from: &Operand, from_offset: usize, len: usize) {
    let (from, to) = (from.address.pointer(), to.address.pointer());
    // SAFETY: the object layer checked that both ranges lie in their memory. The operands keep that
    // memory mapped, or the caller of an unsafe method promised to. Other threads and processes may
    // write there at the same time. Then the bytes are whatever they left, as documented.
    unsafe {
        shared_copy::copy(
            from.as_ptr().add(from_offset),
            to.as_ptr().add(to_offset),
            len,
        );
    }
}

/// Fills memory with a repeated pattern, by copies that double in length.
fn fill(to: &Operand, offset: usize, len: usize, pattern: &[u8]) {
    // SAFETY: the object layer checked that `len` bytes lie in the memory and that `pattern` is not
    // empty. See `copy` for the rest.
    unsafe {
        let start = to.address.pointer().as_ptr().add(offset);
        if let [byte] = pattern {
            shared_copy::fill(start, *byte, len);
            return;
        }
        let mut done = pattern.len().min(len);
        shared_copy::write(pattern.as_ptr(), start, done);
        while done < len {
            let more = done.min(len - done);
            shared_copy::copy(start, start.add(done), more);
            done += more;
        }
    }
}
