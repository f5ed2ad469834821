//! What commands do, as calls of the driver.

use super::device::Gpu;
use super::driver::{Core, List};
use super::memory::LevelZeroSegment;
use crate::backend::{MemoryKind, Place, Segment, Work};
use crate::error::{Error, Result};
use crate::os::address::Address;
use crate::os::mapping::page_size;
use crate::rect::{Pitches, Region};
use std::ffi::c_void;
use std::sync::Arc;

/// Memory between two copies, or with a pattern to copy: used until the command is done.
pub(super) type Extra = Option<LevelZeroSegment>;

/// Where commands go.
pub(super) struct Target<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) core: &'a Arc<Core>,
    pub(super) list: &'a List,
}

impl Target<'_> {
    /// Appends work; what calls the host is not for here.
    ///
    /// # Safety
    /// All that the command uses, `extra` included, stays until the list is past this, also if
    /// there is an error.
    pub(super) unsafe fn append(&self, work: &Work, extra: &mut Extra) -> Result<()> {
        // SAFETY: promised by the caller; the object layer checked that the ranges are in their
        // memory.
        unsafe {
            match work {
                Work::Nothing | Work::Call(_) => Ok(()),
                Work::Native(function) => function(self.list.handle().0.expose_provenance()),
                // Never tried: this backend has no kernels.
                Work::Launch(_) => Err(Error::Unsupported(
                    "there are no kernels on Level Zero yet".into(),
                )),
                Work::Copy { to, from, len } => self.copy(address(to), address(from), *len, extra),
                Work::CopyRect {
                    to,
                    to_pitches,
                    from,
                    from_pitches,
                    region,
                } => {
                    let (to, from) = (address(to), address(from));
                    self.copy_rect((to, *to_pitches), (from, *from_pitches), *region)
                }
                Work::Fill2d {
                    to,
                    pitch,
                    width,
                    rows,
                    pattern,
                } => {
                    let to = address(to);
                    self.fill(to, *width, pattern, extra)?;
                    self.repeat_row(to, *pitch, *width, *rows)
                }
                Work::Fill { to, len, pattern } => self.fill(address(to), *len, pattern, extra),
            }
        }
    }

    /// Copies between ranges that may overlap.
    ///
    /// # Safety
    /// As for `append`.
    unsafe fn copy(&self, to: Address, from: Address, len: usize, extra: &mut Extra) -> Result<()> {
        if len == 0 || to == from {
            return Ok(());
        }
        if to.get().abs_diff(from.get()) >= len {
            // SAFETY: promised by the caller.
            return unsafe { self.list.copy(raw(to), raw(from), len) };
        }
        // The driver copies in any order, so that the source must be elsewhere.
        let between = extra.insert(self.memory(MemoryKind::Device, len)?);
        let place = Address::new(between.start());
        // SAFETY: promised by the caller, who keeps what is between too.
        unsafe {
            self.list.copy(raw(place), raw(from), len)?;
            self.list.copy(raw(to), raw(place), len)
        }
    }

    fn memory(&self, kind: MemoryKind, len: usize) -> Result<LevelZeroSegment> {
        let len = len.next_multiple_of(page_size());
        LevelZeroSegment::create(self.gpu, self.core, kind, len)
    }

    /// Copies the rows of a region.
    ///
    /// # Safety
    /// As for `append`.
    unsafe fn copy_rect(
        &self,
        (to, to_pitches): (Address, Pitches),
        (from, from_pitches): (Address, Pitches),
        region: Region,
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
            // SAFETY: promised by the caller.
            return unsafe { self.list.copy_region(to, from, sizes) };
        }
        // The driver takes numbers of 32 bits.
        for slice in 0..region.slices {
            for row in 0..region.rows {
                let offset = |pitches: Pitches| slice * pitches.slice + row * pitches.row;
                let (to, from) = (
                    to.offset(offset(to_pitches)),
                    from.offset(offset(from_pitches)),
                );
                // SAFETY: promised by the caller.
                unsafe { self.list.copy(raw(to), raw(from), region.width)? };
            }
        }
        Ok(())
    }

    /// Copies the first row to all others, in as few copies as can be.
    ///
    /// # Safety
    /// As for `append`.
    unsafe fn repeat_row(
        &self,
        first: Address,
        pitch: usize,
        width: usize,
        rows: usize,
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
            // SAFETY: promised by the caller; what is copied lies before `done`.
            unsafe { self.copy_rect((to, pitches), (first, pitches), region)? };
            done += more;
        }
        Ok(())
    }

    /// Repeats a pattern.
    ///
    /// # Safety
    /// As for `append`.
    unsafe fn fill(
        &self,
        to: Address,
        len: usize,
        pattern: &[u8],
        extra: &mut Extra,
    ) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        if pattern.len().is_power_of_two() && pattern.len() <= self.gpu.max_pattern() {
            // SAFETY: promised by the caller.
            return unsafe { self.list.fill(raw(to), pattern, len) };
        }
        let staging = extra.insert(self.memory(MemoryKind::Host, pattern.len())?);
        if let Some(bytes) = staging.host_bytes() {
            bytes.write(0, pattern)?;
        }
        let from = Address::new(staging.start());
        let mut done = pattern.len().min(len);
        // SAFETY: promised by the caller; what is copied within lies before `done`.
        unsafe {
            self.list.copy(raw(to), raw(from), done)?;
            while done < len {
                let more = done.min(len - done);
                self.list.copy(raw(to.offset(done)), raw(to), more)?;
                done += more;
            }
        }
        Ok(())
    }
}

fn address(place: &Place) -> Address {
    place.address
}

fn raw(address: Address) -> *mut c_void {
    address.pointer().as_ptr().cast()
}
