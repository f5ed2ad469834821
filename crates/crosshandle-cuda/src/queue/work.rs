//! Translates the work of commands into driver calls.

use crate::device::Gpu;
use crate::driver::{DeviceAddress, Driver, FillWord, RectCopy, Rows, Side, StreamHandle};
use crate::memory::{self, Staging};
use crate::queue::graph;
use crate::tuning::STREAM_MAX_CALLS;
use crate::{image, program};
use crosshandle_hal::{BackendSegment, Operand, Work};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{MemoryKind, Pitches, Region};
use std::sync::Arc;

/// Longest pattern, in bytes, that fills of single words write. A longer pattern is copied from
/// pinned host memory. A fill with a pattern of this length takes up to 64 calls.
const INLINE_PATTERN_BYTES: usize = 64;

/// Memory that a command uses in addition to its operands, until the command has finished.
#[derive(Default)]
pub(super) enum Extra {
    #[default]
    None,
    /// A staged copy of a long pattern.
    Pattern(Staging),
    /// Device memory through which a copy between overlapping ranges goes.
    Between(Arc<dyn BackendSegment>),
}

/// Creates the memory that the work uses in addition to its operands. The driver may wait for
/// streams, and memory may have to be released first, so the caller holds no lock.
pub(super) fn prepare(gpu: &Arc<Gpu>, work: &Work) -> Result<Extra> {
    let pattern_of = |to: &Operand, pattern: &[u8]| match is_staged(pattern, address(to)) {
        true => Staging::new(gpu, pattern).map(Extra::Pattern),
        false => Ok(Extra::None),
    };
    match work {
        Work::Copy { to, from, len } if overlaps(address(to), address(from), *len) => {
            let len = len.next_multiple_of(gpu.info().granularity);
            memory::create(gpu, MemoryKind::Device, len).map(Extra::Between)
        }
        Work::Fill { to, pattern, .. } => pattern_of(to, pattern),
        Work::Fill2d(fill) => pattern_of(&fill.to, &fill.pattern),
        _ => Ok(Extra::None),
    }
}

/// Returns whether the ranges of a copy overlap. Such a copy goes through other memory, because the
/// driver copies bytes in any order.
fn overlaps(to: DeviceAddress, from: DeviceAddress, len: usize) -> bool {
    to != from && to.abs_diff(from) < len as DeviceAddress
}

/// Returns whether the pattern is copied from host memory.
fn is_staged(pattern: &[u8], to: DeviceAddress) -> bool {
    pattern.len() > INLINE_PATTERN_BYTES && word_of(pattern, to).is_none()
}

/// Returns the maximum number of driver calls that the work takes.
pub(super) fn calls(work: &Work) -> u32 {
    // A fill repeatedly copies the part that is already filled, which doubles that part each time.
    let doublings = |times: usize| usize::BITS - times.leading_zeros();
    let row = |len: usize, pattern: &[u8]| {
        pattern.len().min(INLINE_PATTERN_BYTES) as u32 + doublings(len / pattern.len())
    };
    match work {
        Work::Marker | Work::Recorded(_) => 0,
        Work::Copy { .. } => 2,
        Work::CopyImage(copy) => image::calls(copy),
        Work::CopyRect(_) | Work::Call(_) | Work::Launch(_) | Work::Native(_) => 1,
        Work::Graph(run) => graph::calls(run),
        Work::Fill { pattern, len, .. } => row(*len, pattern),
        Work::Fill2d(fill) => row(fill.width, &fill.pattern) + doublings(fill.rows),
    }
}

/// Returns whether a driver call for the work may block its caller until the work's turn in the
/// stream. This is so for copies from or to host memory that the driver does not know, and for
/// copies of more calls than a waiting stream accepts.
pub(super) fn holds_up(gpu: &Gpu, work: &Work) -> bool {
    // The driver knows all memory that an operand keeps alive, because this library created it.
    let is_unknown = |place: &Operand| place.keep.is_none() && !gpu.driver().knows(address(place));
    copies(work) && (calls(work) > STREAM_MAX_CALLS || work.operands().any(is_unknown))
}

/// Returns whether the work is a copy.
pub(super) fn copies(work: &Work) -> bool {
    matches!(
        work,
        Work::Copy { .. } | Work::CopyRect(_) | Work::CopyImage(_)
    )
}

/// Submits work that does not call the host. The device's context is current.
///
/// # Safety
/// All objects that the command uses, including `extra`, stay valid until the stream has passed the
/// work, even if this returns an error.
pub(super) unsafe fn enqueue(
    gpu: &Arc<Gpu>,
    stream: StreamHandle,
    work: &Work,
    extra: &Extra,
) -> Result<()> {
    // SAFETY: promised by the caller.
    unsafe {
        match work {
            // Recorded work is only in graphs.
            Work::Marker | Work::Call(_) | Work::Recorded(_) => Ok(()),
            Work::Native(function) => function(stream.number()),
            Work::Launch(launch) => program::launch(gpu, stream, launch),
            Work::Graph(run) => graph::launch(gpu, stream, run),
            work => {
                let driver = gpu.driver();
                transfer(&mut StreamTarget { driver, stream }, work, extra)
            }
        }
    }
}

/// A destination for copies and fills: a stream or a graph.
pub(super) trait Target {
    /// Copies between ranges that do not overlap.
    ///
    /// # Safety
    /// Both ranges stay valid until the stream, or every run of the graph, has finished the copy.
    unsafe fn copy(&mut self, to: DeviceAddress, from: DeviceAddress, len: usize) -> Result<()>;

    /// Copies a rectangle.
    ///
    /// # Safety
    /// As for `copy`.
    unsafe fn copy_rect(&mut self, copy: &RectCopy) -> Result<()>;

    /// Fills memory with `count` words. The caller ensures that `to` is aligned for them.
    ///
    /// # Safety
    /// As for `copy`.
    unsafe fn fill(&mut self, to: DeviceAddress, word: FillWord, count: usize) -> Result<()>;
}

/// A stream, which does the work in the order of the calls.
struct StreamTarget {
    driver: &'static Driver,
    stream: StreamHandle,
}

impl Target for StreamTarget {
    unsafe fn copy(&mut self, to: DeviceAddress, from: DeviceAddress, len: usize) -> Result<()> {
        // SAFETY: promised by the caller.
        unsafe { self.driver.copy(self.stream, to, from, len) }
    }

    unsafe fn copy_rect(&mut self, copy: &RectCopy) -> Result<()> {
        let copy = match copy.has_array() {
            // In a copy with an array, the driver does not find out itself where memory lies.
            true => copy.located(self.driver),
            false => *copy,
        };
        // SAFETY: promised by the caller.
        unsafe { self.driver.copy_rect(self.stream, &copy) }
    }

    unsafe fn fill(&mut self, to: DeviceAddress, word: FillWord, count: usize) -> Result<()> {
        // SAFETY: promised by the caller.
        unsafe { self.driver.fill(self.stream, to, word, count) }
    }
}

/// Passes a copy or a fill to a target that works in order. Does nothing for other work.
///
/// # Safety
/// All objects that the work uses, including `extra`, stay valid until the target has finished the
/// work, even if this returns an error.
pub(super) unsafe fn transfer(target: &mut impl Target, work: &Work, extra: &Extra) -> Result<()> {
    // SAFETY: promised by the caller. The object layer checked that the ranges lie inside their
    // memory.
    unsafe {
        match work {
            Work::Copy { to, from, len } => copy(target, address(to), address(from), *len, extra),
            Work::CopyRect(copy) => {
                let to = (address(&copy.to), copy.to_pitches);
                let from = (address(&copy.from), copy.from_pitches);
                target.copy_rect(&rect(to, from, copy.region))
            }
            Work::Fill2d(rows) => {
                let to = address(&rows.to);
                fill(target, to, rows.width, &rows.pattern, extra)?;
                repeat_row(target, to, rows.pitch, rows.width, rows.rows)
            }
            Work::Fill { to, len, pattern } => fill(target, address(to), *len, pattern, extra),
            Work::CopyImage(copy) => {
                let copies = image::copies(copy)?;
                copies.iter().try_for_each(|copy| target.copy_rect(copy))
            }
            Work::Marker
            | Work::Call(_)
            | Work::Native(_)
            | Work::Launch(_)
            | Work::Graph(_)
            | Work::Recorded(_) => Ok(()),
        }
    }
}

fn address(place: &Operand) -> DeviceAddress {
    place.address.get() as DeviceAddress
}

/// Copies between ranges that may overlap.
///
/// # Safety
/// As for `transfer`.
unsafe fn copy(
    target: &mut impl Target,
    to: DeviceAddress,
    from: DeviceAddress,
    len: usize,
    extra: &Extra,
) -> Result<()> {
    if len == 0 || to == from {
        return Ok(());
    }
    if !overlaps(to, from, len) {
        // SAFETY: promised by the caller.
        return unsafe { target.copy(to, from, len) };
    }
    let Extra::Between(between) = extra else {
        return Err(Error::invalid(
            "a copy within memory needs memory in between",
        ));
    };
    let place = between.start().get() as DeviceAddress;
    // SAFETY: promised by the caller, which also keeps the memory in between.
    unsafe {
        target.copy(place, from, len)?;
        target.copy(to, place, len)
    }
}

/// Returns the driver's description of a copy of a region.
fn rect(to: (DeviceAddress, Pitches), from: (DeviceAddress, Pitches), region: Region) -> RectCopy {
    let place = |(start, pitches): (DeviceAddress, Pitches)| {
        Side::Rows(Rows {
            start,
            row_pitch: pitches.row,
            // Slice pitches are multiples of row pitches.
            slice_rows: pitches.slice / pitches.row,
            is_unknown: false,
        })
    };
    RectCopy {
        to: place(to),
        from: place(from),
        sizes: [region.width, region.rows, region.slices],
    }
}

/// Copies the first row to all other rows, with as few copies as possible.
///
/// # Safety
/// As for `transfer`.
unsafe fn repeat_row(
    target: &mut impl Target,
    first: DeviceAddress,
    pitch: usize,
    width: usize,
    rows: usize,
) -> Result<()> {
    let mut done = 1;
    while done < rows {
        let more = done.min(rows - done);
        let to = first + (done * pitch) as DeviceAddress;
        let pitches = Pitches {
            row: pitch,
            slice: more * pitch,
        };
        let region = Region::new_2d(width, more);
        // SAFETY: promised by the caller. The copy reads only rows before `done`.
        unsafe { target.copy_rect(&rect((to, pitches), (first, pitches), region))? };
        done += more;
    }
    Ok(())
}

/// Fills memory with a repeated pattern.
///
/// # Safety
/// As for `transfer`.
unsafe fn fill(
    target: &mut impl Target,
    to: DeviceAddress,
    len: usize,
    pattern: &[u8],
    extra: &Extra,
) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    if let Some((word, size)) = word_of(pattern, to) {
        // SAFETY: promised by the caller. `to` is aligned for the word.
        return unsafe { target.fill(to, word, len / size) };
    }
    if pattern.len() <= INLINE_PATTERN_BYTES {
        let mut at = to;
        for (word, size) in words_of(pattern, to) {
            // SAFETY: promised by the caller. The pattern fits at least once.
            unsafe { target.fill(at, word, 1)? };
            at += size as DeviceAddress;
        }
    } else {
        let Extra::Pattern(bytes) = extra else {
            return Err(Error::invalid("a long pattern needs memory of the host"));
        };
        let from = bytes.address();
        // SAFETY: promised by the caller, which also keeps the bytes of the pattern.
        unsafe { target.copy(to, from, pattern.len())? };
    }
    let mut done = pattern.len();
    while done < len {
        let more = done.min(len - done);
        // SAFETY: promised by the caller. The copy reads only bytes before `done`.
        unsafe { target.copy(to + done as DeviceAddress, to, more)? };
        done += more;
    }
    Ok(())
}

/// Returns the word that the pattern repeats, and the word's size in bytes. Returns `None` if there
/// is no such word, or if `to` is not aligned for it.
fn word_of(pattern: &[u8], to: DeviceAddress) -> Option<(FillWord, usize)> {
    let repeats = |size: usize| {
        pattern.len().is_multiple_of(size)
            && to.is_multiple_of(size as DeviceAddress)
            && pattern.chunks(size).all(|chunk| *chunk == pattern[..size])
    };
    let size = [1, 2, 4].into_iter().find(|size| repeats(*size))?;
    Some((word_at(pattern, size), size))
}

/// Returns the pattern as a sequence of words to write, starting at `to`.
fn words_of(pattern: &[u8], to: DeviceAddress) -> impl Iterator<Item = (FillWord, usize)> {
    let aligned = |size: usize| {
        pattern.len().is_multiple_of(size) && to.is_multiple_of(size as DeviceAddress)
    };
    let size = if aligned(4) {
        4
    } else if aligned(2) {
        2
    } else {
        1
    };
    pattern
        .chunks(size)
        .map(move |chunk| (word_at(chunk, size), size))
}

/// Returns the first word of `bytes`.
fn word_at(bytes: &[u8], size: usize) -> FillWord {
    match size {
        1 => FillWord::Byte(bytes[0]),
        2 => FillWord::Half(u16::from_ne_bytes([bytes[0], bytes[1]])),
        _ => FillWord::Word(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of((word, size): (FillWord, usize)) -> Vec<u8> {
        let bytes = match word {
            FillWord::Byte(byte) => vec![byte],
            FillWord::Half(half) => half.to_ne_bytes().to_vec(),
            FillWord::Word(word) => word.to_ne_bytes().to_vec(),
        };
        assert_eq!(bytes.len(), size);
        bytes
    }

    #[test]
    fn patterns_that_repeat_a_word_are_one_fill() {
        for (pattern, to, wanted) in [
            (&[7_u8, 7, 7][..], 3, Some(&[7_u8][..])),
            (&[1, 2, 1, 2], 6, Some(&[1, 2])),
            (&[1, 2, 1, 2], 5, None),
            (&[1, 2, 3, 4, 1, 2, 3, 4], 8, Some(&[1, 2, 3, 4])),
            (&[1, 2, 3, 4, 1, 2, 3, 4], 6, None),
            (&[1, 2, 3], 8, None),
            (&[1, 2, 3, 4, 1, 2], 8, None),
        ] {
            let word = word_of(pattern, to).map(bytes_of);
            assert_eq!(word.as_deref(), wanted, "{pattern:?} at {to}");
        }
    }

    #[test]
    fn other_patterns_are_written_word_by_word() {
        let pattern: Vec<u8> = (0..64).collect();
        for len in 1..=64 {
            for to in 0..8 {
                let mut at = to;
                let mut written = Vec::new();
                for word in words_of(&pattern[..len], to) {
                    assert!(at.is_multiple_of(word.1 as DeviceAddress));
                    at += word.1 as DeviceAddress;
                    written.extend(bytes_of(word));
                }
                assert_eq!(written, pattern[..len], "{len} bytes at {to}");
            }
        }
    }
}
