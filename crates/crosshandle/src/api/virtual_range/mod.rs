//! Virtual ranges: reserved addresses into which physical memory is mapped.

mod export;
mod open;

pub use export::VirtualRangeExport;

use crate::api::context::Context;
use crate::api::core::ContextCore;
use crate::api::memory::MemoryRange;
use crate::api::physical::{PhysicalMemory, check_granularity};
use crosshandle_hal::BackendRange;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Access, SharedBytes, byte_range};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Range, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A range of reserved addresses, into which physical memory is mapped. Any thread may use it.
pub struct VirtualRange {
    range: Box<dyn BackendRange>,
    core: Arc<ContextCore>,
    len: usize,
    /// The mappings, by offset.
    mapped: Mutex<BTreeMap<usize, Mapped>>,
}

struct Mapped {
    len: usize,
    /// The number of users: calls of `with_bytes` in progress, and memory that was opened here.
    users: usize,
    /// The access. `None` means that the backend has mapped nothing here.
    access: Option<Access>,
    memory: PhysicalMemory,
    memory_offset: usize,
}

impl Mapped {
    fn access(&self) -> Result<Access> {
        self.access.ok_or_else(|| {
            Error::invalid("what is mapped there is mapped without access; change that first")
        })
    }
}

/// Checks that the access is not more than the memory was opened for.
fn check_access(memory: &PhysicalMemory, access: Option<Access>) -> Result<()> {
    if access == Some(Access::ReadWrite) && memory.access() == Access::ReadOnly {
        return Err(Error::ReadOnly);
    }
    Ok(())
}

impl VirtualRange {
    /// Reserves `len` bytes of addresses, into which physical memory can be mapped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `len` is a positive
    /// multiple of the device's granularity.
    pub fn reserve(context: &Context, len: usize) -> Result<Self> {
        Self::reserve_near(context.core(), 0, len)
    }

    /// Reserves `len` bytes of addresses, if possible those that start at `address`. This can
    /// extend an existing range. The address is a hint: if some of the addresses are taken, others
    /// are reserved. [`as_ptr`](Self::as_ptr) shows which ones.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn reserve_at(context: &Context, address: *const u8, len: usize) -> Result<Self> {
        Self::reserve_near(context.core(), address.addr(), len)
    }

    fn reserve_near(core: &Arc<ContextCore>, wish: usize, len: usize) -> Result<Self> {
        check_granularity(core, "a virtual range", len)?;
        let align = core.backend().granularity();
        Ok(Self {
            range: core.backend().reserve(wish, len, align)?,
            core: Arc::clone(core),
            len,
            mapped: Mutex::default(),
        })
    }

    /// Returns the address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.range.start().pointer().as_ptr()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always returns `false`, because a range is never empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Maps `part` of the bytes of physical memory (`..` for all) at byte `offset` of this range.
    /// If `access` is `None`, the addresses are taken, but accessing them is a fault.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] if the addresses are already mapped, if a part is out of
    ///   bounds, or if an offset or length is not a multiple of the granularity.
    /// - [`Error::ReadOnly`] for writable access to memory that was opened read-only.
    /// - [`Error::Unsupported`] for a part of the memory on a device without
    ///   [`partial_mappings`](crate::device::Capabilities::partial_mappings).
    pub fn map(
        &self,
        offset: usize,
        memory: &PhysicalMemory,
        part: impl RangeBounds<usize>,
        access: impl Into<Option<Access>>,
    ) -> Result<()> {
        let part = byte_range::resolve(part, memory.len())?;
        self.map_used(offset, memory, part, access.into(), 0)
    }

    /// Maps memory as [`map`](Self::map) does, with a number of `users` that prevent changes of the
    /// mapping.
    fn map_used(
        &self,
        offset: usize,
        memory: &PhysicalMemory,
        part: Range<usize>,
        access: Option<Access>,
        users: usize,
    ) -> Result<()> {
        let (memory_offset, len) = (part.start, part.len());
        check_granularity(&self.core, "a mapping", len)?;
        let granularity = self.core.backend().granularity();
        if !offset.is_multiple_of(granularity) || !memory_offset.is_multiple_of(granularity) {
            return Err(Error::invalid(format!(
                "offsets of mappings must be multiples of {granularity} bytes"
            )));
        }
        byte_range::check(offset, len, self.len)?;
        check_access(memory, access)?;
        if !memory.is_of(&self.core) {
            return Err(Error::invalid(
                "physical memory is mapped into ranges of the same backend",
            ));
        }
        let mut mapped = self.mapped();
        let before = mapped.range(..offset + len).next_back();
        if before.is_some_and(|(start, before)| start + before.len > offset) {
            return Err(Error::invalid(format!(
                "something is mapped between {offset} and {} already; unmap it first",
                offset + len
            )));
        }
        let is_part = len < memory.len();
        let device = self.core.device();
        if is_part && !device.info().capabilities.partial_mappings {
            return Err(Error::Unsupported(format!(
                "{device} maps physical memory only as a whole: {} bytes from 0 on",
                memory.len()
            )));
        }
        if let Some(access) = access {
            let physical = memory.memory();
            self.range
                .map(offset, physical, memory_offset, len, access)?;
        }
        mapped.insert(
            offset,
            Mapped {
                len,
                users,
                access,
                memory: memory.clone(),
                memory_offset,
            },
        );
        Ok(())
    }

    /// Unmaps a range of bytes that consists of one mapping or of several adjacent mappings.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for any other range, because mappings are only changed as a
    /// whole, and for mappings in use.
    pub fn unmap(&self, range: impl RangeBounds<usize>) -> Result<()> {
        let range = byte_range::resolve(range, self.len)?;
        let mut unmapped = Vec::new();
        let mut mapped = self.mapped();
        for start in self.within(&mapped, range)? {
            let mapping = &mapped[&start];
            if mapping.access.is_some() {
                self.range.unmap(start, mapping.len)?;
            }
            unmapped.extend(mapped.remove(&start));
        }
        drop(mapped);
        // This may free memory, so it happens without the lock.
        drop(unmapped);
        Ok(())
    }

    /// Changes the access to a range of bytes that consists of one mapping or of several adjacent
    /// mappings. With `None`, accessing the bytes is a fault, but the mapping keeps its memory.
    ///
    /// # Errors
    /// The errors of [`unmap`](Self::unmap), and [`Error::ReadOnly`] for memory that was opened
    /// read-only.
    pub fn set_access(
        &self,
        range: impl RangeBounds<usize>,
        access: impl Into<Option<Access>>,
    ) -> Result<()> {
        let range = byte_range::resolve(range, self.len)?;
        let access = access.into();
        let mut mapped = self.mapped();
        let places = self.within(&mapped, range)?;
        for start in &places {
            check_access(&mapped[start].memory, access)?;
        }
        for start in places {
            let Some(mapping) = mapped.get_mut(&start) else {
                continue;
            };
            match (mapping.access, access) {
                (Some(_), Some(access)) => self.range.set_access(start, mapping.len, access)?,
                (Some(_), None) => self.range.unmap(start, mapping.len)?,
                (None, Some(access)) => {
                    let memory = mapping.memory.memory();
                    let memory_offset = mapping.memory_offset;
                    self.range
                        .map(start, memory, memory_offset, mapping.len, access)?;
                }
                (None, None) => {}
            }
            mapping.access = access;
        }
        Ok(())
    }

    /// Returns the access to the byte at `offset`; `None` if accessing it is a fault.
    pub fn access(&self, offset: usize) -> Option<Access> {
        Self::at(&self.mapped(), offset)?.access
    }

    /// Returns whether the byte at `offset` belongs to a mapping.
    pub fn is_mapped(&self, offset: usize) -> bool {
        Self::at(&self.mapped(), offset).is_some()
    }

    /// Unmaps the mapping at an offset. The caller is its only user.
    fn unmap_used(&self, offset: usize) {
        let mut mapped = self.mapped();
        let Some(mut mapping) = mapped.remove(&offset) else {
            return;
        };
        if mapping.access.is_some() && self.range.unmap(offset, mapping.len).is_err() {
            // The mapping stays until the range is dropped.
            mapping.users = 0;
            mapped.insert(offset, mapping);
            return;
        }
        drop(mapped);
        // This may free memory, so it happens without the lock.
        drop(mapping);
    }

    fn at(mapped: &BTreeMap<usize, Mapped>, offset: usize) -> Option<&Mapped> {
        let (start, mapping) = mapped.range(..=offset).next_back()?;
        (offset - start < mapping.len).then_some(mapping)
    }

    /// Returns a range of mapped bytes for a command. The caller keeps the bytes mapped until the
    /// command is complete.
    ///
    /// # Safety
    /// The range must not be unmapped or dropped, and its access must not be reduced, until every
    /// command that uses the result is complete.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the bytes are not inside one mapping.
    #[allow(unsafe_code)] // The promise is the caller's; nothing here relies on it.
    pub unsafe fn range(&self, range: impl RangeBounds<usize>) -> Result<MemoryRange> {
        let range = byte_range::resolve(range, self.len)?;
        let access = Self::inside(&mut self.mapped(), &range)?.1.access()?;
        let (start, len) = (self.range.start().offset(range.start), range.len());
        let is_on_host = self.range.host_bytes(access).is_some();
        Ok(MemoryRange::new(start, len, access, is_on_host))
    }

    /// Calls `f` with a range of mapped bytes. Until `f` returns, calls that unmap the bytes or
    /// change their access fail.
    ///
    /// # Errors
    /// The errors of [`range`](Self::range), and [`Error::Unsupported`] if the host cannot access
    /// the bytes.
    pub fn with_bytes<R>(
        &self,
        range: impl RangeBounds<usize>,
        f: impl FnOnce(SharedBytes<'_>) -> R,
    ) -> Result<R> {
        let range = byte_range::resolve(range, self.len)?;
        let (start, access) = self.use_mapping(&range)?;
        let _use = Use { range: self, start };
        let bytes = self.range.host_bytes(access).ok_or_else(|| {
            Error::Unsupported("the host cannot access this device's memory directly".into())
        })?;
        let bytes = bytes.slice(range)?;
        Ok(f(bytes))
    }

    /// Prevents changes of the mapping that contains a range, until a [`Use`] is dropped.
    fn use_mapping(&self, range: &Range<usize>) -> Result<(usize, Access)> {
        let mut mapped = self.mapped();
        let (start, mapping) = Self::inside(&mut mapped, range)?;
        let access = mapping.access()?;
        mapping.users += 1;
        Ok((start, access))
    }

    fn inside<'a>(
        mapped: &'a mut BTreeMap<usize, Mapped>,
        range: &Range<usize>,
    ) -> Result<(usize, &'a mut Mapped)> {
        let (offset, len) = (range.start, range.len());
        let found = mapped.range_mut(..=offset).next_back();
        found
            .filter(|(start, mapping)| {
                let inside = offset - **start;
                inside < mapping.len && len <= mapping.len - inside
            })
            .map(|(start, mapping)| (*start, mapping))
            .ok_or_else(|| {
                Error::invalid(format!("{len} bytes at {offset} do not lie in one mapping"))
            })
    }

    /// Returns the offsets of the mappings that make up a range. Fails if one of them is in use.
    fn within(&self, mapped: &BTreeMap<usize, Mapped>, range: Range<usize>) -> Result<Vec<usize>> {
        let mut places = Vec::new();
        let mut next = range.start;
        for (start, mapping) in mapped.range(range.clone()) {
            if *start != next {
                break;
            }
            if mapping.users > 0 {
                return Err(Error::invalid(format!(
                    "the mapping at {start} is in use by `with_bytes`, or by memory that was opened there"
                )));
            }
            places.push(*start);
            next += mapping.len;
        }
        if places.is_empty() || next != range.end {
            return Err(Error::invalid(format!(
                "the {} bytes at {} are not one or several whole mappings",
                range.len(),
                range.start
            )));
        }
        Ok(places)
    }

    fn mapped(&self) -> MutexGuard<'_, BTreeMap<usize, Mapped>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call of `with_bytes` in progress.
struct Use<'a> {
    range: &'a VirtualRange,
    start: usize,
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        if let Some(mapping) = self.range.mapped().get_mut(&self.start) {
            mapping.users -= 1;
        }
    }
}

impl fmt::Debug for VirtualRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualRange")
            .field("start", &self.as_ptr())
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
