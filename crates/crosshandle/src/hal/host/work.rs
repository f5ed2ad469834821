//! What commands do to host memory.

use crate::error::{Error, Result};
use crate::hal::{Operand, RectCopy, Work};
use crate::types::Pitches;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{mem, ptr};

/// Whether a command touches at most `limit` bytes and calls nobody.
pub(super) fn is_short(work: &Work, limit: usize) -> bool {
    match work {
        Work::Marker => true,
        Work::Copy { len, .. } | Work::Fill { len, .. } => *len <= limit,
        Work::CopyRect(copy) => copy.region.bytes() <= limit,
        Work::Fill2d(fill) => fill.width.saturating_mul(fill.rows) <= limit,
        Work::Call(_) | Work::Native(_) | Work::Launch(_) => false,
    }
}

/// Runs a command, and leaves what it used.
pub(super) fn run(work: &mut Work) -> Result<()> {
    match work {
        Work::Call(_) => {
            let Work::Call(function) = mem::replace(work, Work::Marker) else {
                return Ok(());
            };
            // A panic must not take the queue and its waiters down.
            // Its error's text and drop are the user's code too.
            let call = || function().map_err(|error| error.to_string());
            let message = match catch_unwind(AssertUnwindSafe(call)) {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(message)) => message,
                Err(panic) => {
                    std::mem::forget(panic);
                    "a host function panicked".into()
                }
            };
            Err(Error::CommandFailed(message.into()))
        }
        // For queues of drivers.
        Work::Marker | Work::Native(_) => Ok(()),
        Work::Launch(_) => Err(Error::Unsupported(
            "a queue on the host runs no kernels".into(),
        )),
        Work::Copy { to, from, len } => {
            copy(to, 0, from, 0, *len);
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
            for slice in 0..region.slices {
                for row in 0..region.rows {
                    let offset = |pitches: Pitches| slice * pitches.slice + row * pitches.row;
                    let (to_offset, from_offset) = (offset(*to_pitches), offset(*from_pitches));
                    copy(to, to_offset, from, from_offset, region.width);
                }
            }
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

/// Drops a command that has run, or is not to. What it captured is the user's code too.
pub(super) fn discard(work: Work) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(work))) {
        std::mem::forget(panic);
    }
}

/// Copies between ranges that may overlap.
fn copy(to: &Operand, to_offset: usize, from: &Operand, from_offset: usize, len: usize) {
    // SAFETY: the object layer checked that both ranges lie in their memory, which the places
    // keep mapped (or the caller of an unsafe method promised so). Other processes may write
    // there at the same time; then the bytes are whatever they left, as documented.
    unsafe {
        ptr::copy(
            from.address.pointer().as_ptr().add(from_offset),
            to.address.pointer().as_ptr().add(to_offset),
            len,
        );
    }
}

/// Repeats a pattern, in copies that double.
fn fill(to: &Operand, offset: usize, len: usize, pattern: &[u8]) {
    // SAFETY: the object layer checked that `len` bytes there are in the memory, and that
    // `pattern` is not empty; see `copy` for the rest. Source and destination of the copies don't
    // overlap: what is copied lies before `done`.
    unsafe {
        let start = to.address.pointer().as_ptr().add(offset);
        if let [byte] = pattern {
            ptr::write_bytes(start, *byte, len);
            return;
        }
        let first = pattern.len().min(len);
        ptr::copy_nonoverlapping(pattern.as_ptr(), start, first);
        let mut done = first;
        while done < len {
            let more = done.min(len - done);
            ptr::copy_nonoverlapping(start, start.add(done), more);
            done += more;
        }
    }
}
