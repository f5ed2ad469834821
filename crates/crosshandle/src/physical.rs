//! Physical memory, and addresses to map it into.

use crate::backend::{AddressRange, BackendContext};
use crate::context::ContextCore;
use crate::error::{Error, Result};
use crate::handle::{Fields, PhysicalMemoryHandle};
use crate::memory::MemoryRange;
use crate::os::address::Address;
use crate::os::mapping::Access;
use crate::os::shared_bytes::{SharedBytes, check_range};
use crate::pool;
use crate::sharing::{Attachment, Record, RecordCell, Shared};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory without an address: it is accessed by mapping it into a [`VirtualRange`], any number of
/// times. Cheap to clone; any thread may use it.
///
/// It lives as long as it is held, mapped or open in any process.
#[derive(Clone)]
pub struct PhysicalMemory {
    inner: Arc<Physical>,
}

struct Physical {
    core: Arc<ContextCore>,
    memory: Arc<dyn Shared>,
    access: Access,
    number: u32,
    /// The records under which it is exported, for writing and for reading only.
    exports: [RecordCell; 2],
    opened: Option<(Arc<Attachment>, Record)>,
}

impl PhysicalMemory {
    pub(crate) fn create(core: &Arc<ContextCore>, len: usize) -> Result<Self> {
        check_granularity(core, "physical memory", len)?;
        let memory = core.backend().create_physical(len)?;
        Ok(Self::new(core, memory, Access::ReadWrite, None))
    }

    pub(crate) fn open(
        core: &Arc<ContextCore>,
        handle: &PhysicalMemoryHandle,
        access: Access,
    ) -> Result<Self> {
        let fields = handle.fields();
        core.check(&fields)?;
        if fields.read_only && access == Access::ReadWrite {
            return Err(Error::ReadOnly);
        }
        let record = Record {
            index: fields.record,
            generation: fields.generation,
        };
        let attachment = core.attachment(&fields)?;
        let (file, len) = attachment.fetch(record, access)?;
        if len != fields.segment_length {
            return Err(Error::Extent {
                claimed: fields.segment_length,
                actual: len,
            });
        }
        let memory = core.backend().import_physical(file, len as usize)?;
        attachment.hold(record.index, record.generation)?;
        Ok(Self::new(core, memory, access, Some((attachment, record))))
    }

    fn new(
        core: &Arc<ContextCore>,
        memory: Arc<dyn Shared>,
        access: Access,
        opened: Option<(Arc<Attachment>, Record)>,
    ) -> Self {
        Self {
            inner: Arc::new(Physical {
                core: Arc::clone(core),
                memory,
                access,
                number: pool::next_number(core.numbers(), true),
                exports: Default::default(),
                opened,
            }),
        }
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.inner.memory.len()
    }

    /// Whether it is empty, which physical memory never is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A handle to it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for physical memory that was itself opened from a handle; limits
    /// of the system.
    pub fn handle(&self) -> Result<PhysicalMemoryHandle> {
        self.inner.handle(Access::ReadWrite)
    }

    /// A handle with which it can be opened for reading only.
    ///
    /// # Errors
    /// As [`handle`](Self::handle).
    pub fn handle_read_only(&self) -> Result<PhysicalMemoryHandle> {
        self.inner.handle(Access::ReadOnly)
    }
}

impl fmt::Debug for PhysicalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PhysicalMemory")
            .field("len", &self.len())
            .field("access", &self.inner.access)
            .finish_non_exhaustive()
    }
}

impl Physical {
    fn handle(&self, access: Access) -> Result<PhysicalMemoryHandle> {
        if self.opened.is_some() {
            return Err(Error::invalid(
                "this physical memory was opened from a handle; pass that handle on instead",
            ));
        }
        let place = &self.exports[usize::from(access == Access::ReadOnly)];
        let record = match place.get() {
            Some(record) => record,
            None => self
                .core
                .exporter()
                .export_at(place, &self.memory, access)?,
        };
        let len = self.memory.len() as u64;
        Ok(PhysicalMemoryHandle::new(&Fields {
            read_only: access == Access::ReadOnly,
            segment: self.number,
            length: len,
            segment_length: len,
            ..self.core.fields(record)
        }))
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        if let Some((attachment, record)) = &self.opened {
            attachment.release(record.index);
        }
        let exporter = self.core.exporter();
        for record in self.exports.iter().filter_map(RecordCell::get) {
            // Its memory is never reused, so there is nothing to keep.
            exporter.retire(record, true, None);
        }
    }
}

/// Reserved addresses, into which physical memory is mapped. Any thread may use it.
pub struct VirtualRange {
    range: Box<dyn AddressRange>,
    core: Arc<ContextCore>,
    len: usize,
    /// What is mapped, by offset.
    mapped: Mutex<BTreeMap<usize, Mapped>>,
}

struct Mapped {
    len: usize,
    access: Access,
    memory: PhysicalMemory,
}

impl VirtualRange {
    pub(crate) fn reserve(core: &Arc<ContextCore>, len: usize) -> Result<Self> {
        check_granularity(core, "a virtual range", len)?;
        let align = core.backend().granularity();
        Ok(Self {
            range: core.backend().reserve(len, align)?,
            core: Arc::clone(core),
            len,
            mapped: Mutex::default(),
        })
    }

    /// Where it starts.
    pub fn as_ptr(&self) -> *mut u8 {
        self.range.start().as_ptr()
    }

    /// Bytes of addresses in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty, which a range never is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Maps `len` bytes of physical memory, from `memory_offset` on, to `offset`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if something is mapped there already, for parts that are not
    /// inside, and for offsets and lengths that are no multiples of the granularity;
    /// [`Error::ReadOnly`] for writable access to memory opened read-only.
    pub fn map(
        &self,
        offset: usize,
        memory: &PhysicalMemory,
        memory_offset: usize,
        len: usize,
        access: Access,
    ) -> Result<()> {
        check_granularity(&self.core, "a mapping", len)?;
        let granularity = self.core.backend().granularity();
        if !offset.is_multiple_of(granularity) || !memory_offset.is_multiple_of(granularity) {
            return Err(Error::invalid(format!(
                "offsets of mappings must be multiples of {granularity} bytes"
            )));
        }
        check_range(offset, len, self.len)?;
        check_range(memory_offset, len, memory.len())?;
        if access == Access::ReadWrite && memory.inner.access == Access::ReadOnly {
            return Err(Error::ReadOnly);
        }
        let mut mapped = self.mapped();
        let before = mapped.range(..offset + len).next_back();
        if before.is_some_and(|(start, before)| start + before.len > offset) {
            return Err(Error::invalid(format!(
                "something is mapped between {offset} and {} already; unmap it first",
                offset + len
            )));
        }
        let physical = &*memory.inner.memory;
        self.range
            .map(offset, physical, memory_offset, len, access)?;
        let memory = memory.clone();
        mapped.insert(
            offset,
            Mapped {
                len,
                access,
                memory,
            },
        );
        Ok(())
    }

    /// Unmaps what was mapped at `offset` with this length.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if no mapping has exactly this place.
    pub fn unmap(&self, offset: usize, len: usize) -> Result<()> {
        let mut mapped = self.mapped();
        Self::exactly(&mapped, offset, len)?;
        self.range.unmap(offset, len)?;
        mapped.remove(&offset);
        Ok(())
    }

    /// Changes what may be done with a mapping.
    ///
    /// # Errors
    /// As [`unmap`](Self::unmap); [`Error::ReadOnly`] for memory opened read-only.
    pub fn set_access(&self, offset: usize, len: usize, access: Access) -> Result<()> {
        let mut mapped = self.mapped();
        let mapping = Self::exactly(&mapped, offset, len)?;
        if access == Access::ReadWrite && mapping.memory.inner.access == Access::ReadOnly {
            return Err(Error::ReadOnly);
        }
        self.range.set_access(offset, len, access)?;
        if let Some(mapping) = mapped.get_mut(&offset) {
            mapping.access = access;
        }
        Ok(())
    }

    /// What may be done with the byte at `offset`; `None` if nothing is mapped there.
    pub fn access(&self, offset: usize) -> Option<Access> {
        let mapped = self.mapped();
        let (start, mapping) = mapped.range(..=offset).next_back()?;
        (offset < start + mapping.len).then_some(mapping.access)
    }

    /// Mapped bytes, for a command. They must stay mapped until the command is done, which is the
    /// caller's affair.
    ///
    /// # Safety
    /// Until every command that uses the result is done, the range must not be unmapped or
    /// dropped, and its access must not be reduced.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they don't lie in one mapping.
    #[allow(unsafe_code)] // The promise is the caller's; nothing here relies on it.
    pub unsafe fn range(&self, offset: usize, len: usize) -> Result<MemoryRange> {
        let access = self.check_mapped(offset, len)?;
        let start = Address::new(self.range.start()).offset(offset);
        Ok(MemoryRange::new(start, len, access, None))
    }

    /// Calls `f` with mapped bytes, which stay mapped meanwhile. `f` must not map, unmap or change
    /// access in this range.
    ///
    /// # Errors
    /// As [`range`](Self::range); [`Error::Unsupported`] if the host cannot access them.
    pub fn with_bytes<R>(
        &self,
        offset: usize,
        len: usize,
        f: impl FnOnce(SharedBytes<'_>) -> R,
    ) -> Result<R> {
        let mapped = self.mapped();
        let access = Self::inside(&mapped, offset, len)?;
        let bytes = self.range.host_bytes(access).ok_or_else(|| {
            Error::Unsupported("the host cannot access this device's memory directly".into())
        })?;
        let bytes = bytes.slice(offset, len)?;
        Ok(f(bytes))
    }

    fn check_mapped(&self, offset: usize, len: usize) -> Result<Access> {
        Self::inside(&self.mapped(), offset, len)
    }

    fn inside(mapped: &BTreeMap<usize, Mapped>, offset: usize, len: usize) -> Result<Access> {
        let found = mapped.range(..=offset).next_back();
        found
            .filter(|(start, mapping)| {
                let inside = offset - **start;
                inside < mapping.len && len <= mapping.len - inside
            })
            .map(|(_, mapping)| mapping.access)
            .ok_or_else(|| {
                Error::invalid(format!("{len} bytes at {offset} do not lie in one mapping"))
            })
    }

    fn exactly(mapped: &BTreeMap<usize, Mapped>, offset: usize, len: usize) -> Result<&Mapped> {
        mapped
            .get(&offset)
            .filter(|mapping| mapping.len == len)
            .ok_or_else(|| {
                Error::invalid(format!(
                    "nothing is mapped at {offset} with a length of {len} bytes"
                ))
            })
    }

    fn mapped(&self) -> MutexGuard<'_, BTreeMap<usize, Mapped>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
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

fn check_granularity(core: &ContextCore, what: &str, len: usize) -> Result<()> {
    let backend: &dyn BackendContext = &**core.backend();
    let granularity = backend.granularity();
    if len == 0 || !len.is_multiple_of(granularity) {
        return Err(Error::invalid(format!(
            "the length of {what} must be a positive multiple of {granularity} bytes, not {len}"
        )));
    }
    Ok(())
}
