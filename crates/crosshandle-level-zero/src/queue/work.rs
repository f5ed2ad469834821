//! The work of commands, as calls of the driver.

use crate::device::Gpu;
use crate::driver::{DriverContext, EventHandle, List};
use crate::memory::LevelZeroSegment;
use crate::{image, program};
use crosshandle_hal::{BackendSegment, Work};
use crosshandle_os::mapping::page_size;
use crosshandle_types::error::Result;
use crosshandle_types::{Address, MemoryKind, Pitches, Region};
use std::ffi::c_void;
use std::sync::Arc;

/// Memory that a command needs for itself until it has ended. It holds the data between two copies,
/// or a pattern to copy.
#[derive(Clone, Default)]
pub(super) enum Staging {
    #[default]
    None,
    One(Arc<LevelZeroSegment>),
    /// The staging memory of each node of a graph.
    Graph(Arc<[Staging]>),
}

/// Returns the number of bytes that a command writes. If it is 0, the list does no work for the
/// command.
pub(super) fn bytes(work: &Work) -> usize {
    match work {
        // Recorded work is only for graphs of drivers, which this backend does not use.
        Work::Marker | Work::Call(_) | Work::Recorded(_) => 0,
        Work::Copy { to, from, .. } if to.address == from.address => 0,
        Work::Copy { len, .. } | Work::Fill { len, .. } => *len,
        Work::CopyRect(copy) => copy.region.bytes(),
        Work::CopyImage(copy) => copy.bytes,
        Work::Fill2d(fill) => fill.width.saturating_mul(fill.rows),
        Work::Native(_) | Work::Launch(_) => usize::MAX,
        Work::Graph(run) => run.works().map(bytes).fold(0, usize::saturating_add),
    }
}

/// Allocates and fills the staging memory that a command needs on a GPU, if any.
#[inline]
pub(super) fn staging(gpu: &Gpu, context: &Arc<DriverContext>, work: &Work) -> Result<Staging> {
    match work {
        Work::Copy { to, from, len } if *len > 0 && overlap(to.address, from.address, *len) => {
            allocate_staging(gpu, context, MemoryKind::Device, *len)
        }
        Work::Fill { pattern, .. } => pattern_staging(gpu, context, pattern),
        Work::Fill2d(fill) => pattern_staging(gpu, context, &fill.pattern),
        Work::Graph(run) => {
            let each = run.works().map(|work| staging(gpu, context, work));
            let each: Arc<[_]> = each.collect::<Result<_>>()?;
            let is_none = each.iter().all(|each| matches!(each, Staging::None));
            Ok(if is_none {
                Staging::None
            } else {
                Staging::Graph(each)
            })
        }
        _ => Ok(Staging::None),
    }
}

fn pattern_staging(gpu: &Gpu, context: &Arc<DriverContext>, pattern: &[u8]) -> Result<Staging> {
    if is_native_pattern(gpu, pattern) {
        return Ok(Staging::None);
    }
    let staging = allocate_staging(gpu, context, MemoryKind::Host, pattern.len())?;
    if let Staging::One(segment) = &staging
        && let Some(bytes) = segment.host_bytes()
    {
        bytes.write(0, pattern)?;
    }
    Ok(staging)
}

#[cold]
fn allocate_staging(
    gpu: &Gpu,
    context: &Arc<DriverContext>,
    kind: MemoryKind,
    len: usize,
) -> Result<Staging> {
    let len = len.next_multiple_of(page_size());
    let segment = LevelZeroSegment::create_private(gpu, context, kind, len)?;
    Ok(Staging::One(Arc::new(segment)))
}

/// Returns whether two ranges overlap without being equal.
fn overlap(to: Address, from: Address, len: usize) -> bool {
    to != from && to.get().abs_diff(from.get()) < len
}

/// Returns whether the driver supports fills with this pattern.
fn is_native_pattern(gpu: &Gpu, pattern: &[u8]) -> bool {
    pattern.len().is_power_of_two() && pattern.len() <= gpu.max_pattern()
}

/// A list to which the work of one command is appended.
pub(super) struct Target<'a> {
    gpu: &'a Gpu,
    list: &'a List,
    /// Whether the list has a part of the command.
    pub(super) has_begun: bool,
}

impl<'a> Target<'a> {
    pub(super) fn new(gpu: &'a Gpu, list: &'a List) -> Self {
        Self {
            gpu,
            list,
            has_begun: false,
        }
    }

    /// Appends work that writes at least one byte. Its last call signals `signal`.
    ///
    /// # Safety
    /// All objects that the command uses live until the list has passed the work, including its
    /// [`staging`] memory and the event. This also holds if the call fails.
    #[inline]
    pub(super) unsafe fn append(
        &mut self,
        work: &Work,
        staging: &Staging,
        signal: Option<EventHandle>,
    ) -> Result<()> {
        // SAFETY: promised by the caller. The object layer checked that the ranges lie in their
        // memory. The creator of a launch promised that it is sound.
        unsafe {
            match work {
                // The list does nothing for these. Native commands go to shared lists.
                Work::Marker | Work::Call(_) | Work::Native(_) | Work::Recorded(_) => Ok(()),
                Work::CopyImage(copy) => {
                    image::append(self.list, copy, signal, &mut self.has_begun)
                }
                Work::Launch(launch) => {
                    program::launch(self.gpu, self.list, launch, signal, &mut self.has_begun)
                }
                Work::Copy { to, from, len } => {
                    self.copy(to.address, from.address, *len, staging, signal)
                }
                Work::CopyRect(copy) => {
                    let to = (copy.to.address, copy.to_pitches);
                    let from = (copy.from.address, copy.from_pitches);
                    self.copy_rect(to, from, copy.region, signal)
                }
                Work::Fill2d(rows) => {
                    let to = rows.to.address;
                    self.fill(to, rows.width, &rows.pattern, staging, None)?;
                    self.repeat_row(to, rows.pitch, rows.width, rows.rows, signal)
                }
                Work::Fill { to, len, pattern } => {
                    self.fill(to.address, *len, pattern, staging, signal)
                }
                // The list is in order, and so are the nodes.
                Work::Graph(run) => {
                    let writes = |work: &Work| bytes(work) > 0;
                    let last = run.works().rposition(writes);
                    for (index, work) in run.works().enumerate() {
                        if writes(work) {
                            let staging = match staging {
                                Staging::Graph(each) => &each[index],
                                _ => &Staging::None,
                            };
                            let signal = signal.filter(|_| Some(index) == last);
                            self.append(work, staging, signal)?;
                        }
                    }
                    Ok(())
                }
            }
        }
    }

    /// Copies between ranges that do not overlap, in one call.
    ///
    /// # Safety
    /// The requirements of `append` apply.
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

    /// Copies between ranges. If they overlap, the copy goes through the staging memory, because
    /// the driver copies bytes in any order.
    ///
    /// # Safety
    /// The requirements of `append` apply.
    #[inline]
    unsafe fn copy(
        &mut self,
        to: Address,
        from: Address,
        len: usize,
        staging: &Staging,
        signal: Option<EventHandle>,
    ) -> Result<()> {
        // SAFETY: promised by the caller, which also keeps the staging memory.
        unsafe {
            let Staging::One(between) = staging else {
                return self.copy_apart(to, from, len, signal);
            };
            self.copy_apart(between.start(), from, len, None)?;
            self.copy_apart(to, between.start(), len, signal)
        }
    }

    /// Copies the rows of a region.
    ///
    /// # Safety
    /// The requirements of `append` apply.
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
        // A size does not fit into the driver's 32-bit numbers, so each row is copied by a call of
        // its own.
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

    /// Copies the first row to all other rows, in as few copies as possible.
    ///
    /// # Safety
    /// The requirements of `append` apply.
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
            // SAFETY: promised by the caller. The source rows lie before the target rows.
            unsafe { self.copy_rect((to, pitches), (first, pitches), region, signal)? };
        }
        Ok(())
    }

    /// Fills memory with a repeated pattern.
    ///
    /// # Safety
    /// The requirements of `append` apply.
    unsafe fn fill(
        &mut self,
        to: Address,
        len: usize,
        pattern: &[u8],
        staging: &Staging,
        signal: Option<EventHandle>,
    ) -> Result<()> {
        let Staging::One(staging) = staging else {
            debug_assert!(is_native_pattern(self.gpu, pattern));
            self.has_begun = true;
            // SAFETY: promised by the caller.
            return unsafe { self.list.fill(raw(to), pattern, len, signal) };
        };
        let from = staging.start();
        let mut done = pattern.len().min(len);
        // SAFETY: promised by the caller. Within the memory, the source of a copy lies before its
        // target.
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

fn raw(address: Address) -> *mut c_void {
    address.pointer().as_ptr().cast()
}
