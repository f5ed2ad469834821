//! What commands do, as calls of the driver.

use super::device::Gpu;
use super::driver::{Core, EventHandle, List};
use super::memory::LevelZeroSegment;
use crate::error::{Error, Result};
use crate::hal::{Operand, Segment, Work};
use crate::os::mapping::page_size;
use crate::types::Address;
use crate::types::MemoryKind;
use crate::types::{Pitches, Region};
use std::ffi::c_void;
use std::sync::Arc;

/// Memory between two copies, or with a pattern to copy: used until the command is done.
pub(super) type Extra = Option<Box<LevelZeroSegment>>;

/// Bytes that a command writes: with none, there is nothing for the list.
pub(super) fn bytes(work: &Work) -> usize {
    match work {
        Work::Marker | Work::Call(_) => 0,
        Work::Copy { to, from, .. } if to.address == from.address => 0,
        Work::Copy { len, .. } | Work::Fill { len, .. } => *len,
        Work::CopyRect(copy) => copy.region.bytes(),
        Work::Fill2d(fill) => fill.width.saturating_mul(fill.rows),
        Work::Native(_) | Work::Launch(_) => usize::MAX,
    }
}

/// Where commands go.
pub(super) struct Target<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) core: &'a Arc<Core>,
    pub(super) list: &'a List,
    /// Whether the list has anything of the command.
    pub(super) has_begun: bool,
}

impl Target<'_> {
    /// Appends work that writes something; what calls the host is not for here. The last call
    /// signals an event.
    ///
    /// # Safety
    /// All that the command uses, `extra` and the event included, stays until the list is past
    /// this, also if there is an error.
    #[inline(always)]
    pub(super) unsafe fn append(
        &mut self,
        work: &Work,
        extra: &mut Extra,
        signal: Option<EventHandle>,
    ) -> Result<()> {
        // SAFETY: promised by the caller; the object layer checked that the ranges are in their
        // memory.
        unsafe {
            match work {
                Work::Marker | Work::Call(_) => Ok(()),
                // Elsewhere: in lists that programs know.
                Work::Native(_) => Ok(()),
                // Never tried: this backend has no kernels.
                Work::Launch(_) => Err(Error::Unsupported(
                    "there are no kernels on Level Zero yet".into(),
                )),
                Work::Copy { to, from, len } => {
                    self.copy(to.address, from.address, *len, extra, signal)
                }
                Work::CopyRect(copy) => {
                    let to = (copy.to.address, copy.to_pitches);
                    let from = (copy.from.address, copy.from_pitches);
                    self.copy_rect(to, from, copy.region, signal)
                }
                Work::Fill2d(rows) => {
                    let to = rows.to.address;
                    self.fill(to, rows.width, &rows.pattern, extra, None)?;
                    self.repeat_row(to, rows.pitch, rows.width, rows.rows, signal)
                }
                Work::Fill { to, len, pattern } => {
                    self.fill(to.address, *len, pattern, extra, signal)
                }
            }
        }
    }

    /// One call: copies between ranges that don't overlap.
    ///
    /// # Safety
    /// As for `append`.
    #[inline]
    unsafe fn copy_apart(
        &mut self,
        to: Address,
        from: Address,
        len: usize,
        signal: Option<EventHandle>,
    ) -> Result<()> {
        self.has_begun = true;
        // SAFETY: promised by the caller.
        unsafe { self.list.copy(raw(to), raw(from), len, signal) }
    }

    /// Copies between ranges that may overlap.
    ///
    /// # Safety
    /// As for `append`.
    #[inline(always)]
    unsafe fn copy(
        &mut self,
        to: Address,
        from: Address,
        len: usize,
        extra: &mut Extra,
        signal: Option<EventHandle>,
    ) -> Result<()> {
        if to.get().abs_diff(from.get()) >= len {
            // SAFETY: promised by the caller.
            return unsafe { self.copy_apart(to, from, len, signal) };
        }
        // SAFETY: promised by the caller.
        unsafe { self.copy_within(to, from, len, extra, signal) }
    }

    /// Copies between ranges that overlap: the driver copies in any order, so that the source must
    /// be elsewhere.
    ///
    /// # Safety
    /// As for `append`.
    #[cold]
    unsafe fn copy_within(
        &mut self,
        to: Address,
        from: Address,
        len: usize,
        extra: &mut Extra,
        signal: Option<EventHandle>,
    ) -> Result<()> {
        let between = extra.insert(self.memory(MemoryKind::Device, len)?);
        let place = between.start();
        // SAFETY: promised by the caller, who keeps what is between too.
        unsafe {
            self.copy_apart(place, from, len, None)?;
            self.copy_apart(to, place, len, signal)
        }
    }

    #[cold]
    fn memory(&self, kind: MemoryKind, len: usize) -> Result<Box<LevelZeroSegment>> {
        let len = len.next_multiple_of(page_size());
        LevelZeroSegment::create_private(self.gpu, self.core, kind, len).map(Box::new)
    }

    /// Copies the rows of a region.
    ///
    /// # Safety
    /// As for `append`.
    unsafe fn copy_rect(
        &mut self,
        (to, to_pitches): (Address, Pitches),
        (from, from_pitches): (Address, Pitches),
        region: Region,
        signal: Option<EventHandle>,
    ) -> Result<()> {
        let small = |size: usize| u32::try_from(size).ok();
        let pitches = |pitches: Pitches| Some((small(pitches.row)?, small(pitches.slice)?));
        let sizes = || {
            Some([
                small(region.width)?,
                small(region.rows)?,
                small(region.slices)?,
            ])
        };
        if let (Some(to_small), Some(from_small), Some(sizes)) =
            (pitches(to_pitches), pitches(from_pitches), sizes())
        {
            let to = (raw(to), to_small.0, to_small.1);
            let from = (raw(from).cast_const(), from_small.0, from_small.1);
            self.has_begun = true;
            // SAFETY: promised by the caller.
            return unsafe { self.list.copy_region(to, from, sizes, signal) };
        }
        // The driver takes numbers of 32 bits.
        let last = (region.slices - 1, region.rows - 1);
        for slice in 0..region.slices {
            for row in 0..region.rows {
                let offset = |pitches: Pitches| slice * pitches.slice + row * pitches.row;
                let (to, from) = (
                    to.offset(offset(to_pitches)),
                    from.offset(offset(from_pitches)),
                );
                let signal = signal.filter(|_| (slice, row) == last);
                // SAFETY: promised by the caller.
                unsafe { self.copy_apart(to, from, region.width, signal)? };
            }
        }
        Ok(())
    }

    /// Copies the first row to all others, in as few copies as can be.
    ///
    /// # Safety
    /// As for `append`.
    unsafe fn repeat_row(
        &mut self,
        first: Address,
        pitch: usize,
        width: usize,
        rows: usize,
        signal: Option<EventHandle>,
    ) -> Result<()> {
        let mut done = 1;
        while done < rows {
            let more = done.min(rows - done);
            let pitches = Pitches {
                row: pitch,
                slice: more * pitch,
            };
            let region = Region::new_2d(width, more);
            let to = first.offset(done * pitch);
            done += more;
            let signal = signal.filter(|_| done == rows);
            // SAFETY: promised by the caller; what is copied lies before what is written.
            unsafe { self.copy_rect((to, pitches), (first, pitches), region, signal)? };
        }
        Ok(())
    }

    /// Repeats a pattern.
    ///
    /// # Safety
    /// As for `append`.
    unsafe fn fill(
        &mut self,
        to: Address,
        len: usize,
        pattern: &[u8],
        extra: &mut Extra,
        signal: Option<EventHandle>,
    ) -> Result<()> {
        if pattern.len().is_power_of_two() && pattern.len() <= self.gpu.max_pattern() {
            self.has_begun = true;
            // SAFETY: promised by the caller.
            return unsafe { self.list.fill(raw(to), pattern, len, signal) };
        }
        let staging = extra.insert(self.memory(MemoryKind::Host, pattern.len())?);
        if let Some(bytes) = staging.host_bytes() {
            bytes.write(0, pattern)?;
        }
        let from = staging.start();
        let mut done = pattern.len().min(len);
        // SAFETY: promised by the caller; what is copied within lies before what is written.
        unsafe {
            self.copy_apart(to, from, done, signal.filter(|_| done == len))?;
            while done < len {
                let more = done.min(len - done);
                let place = to.offset(done);
                done += more;
                self.copy_apart(place, to, more, signal.filter(|_| done == len))?;
            }
        }
        Ok(())
    }
}

/// Whatever keeps the memory of a command.
pub(super) fn keeps(work: &Work) -> impl Iterator<Item = &Operand> {
    work.operands().filter(|place| place.keep.is_some())
}

fn raw(address: Address) -> *mut c_void {
    address.pointer().as_ptr().cast()
}
