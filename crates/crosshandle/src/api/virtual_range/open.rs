//! Memory of other processes at addresses that this process has chosen.

use super::VirtualRange;
use crate::api::core::Imported;
use crate::api::memory::Memory;
use crate::api::physical::PhysicalMemory;
use crate::error::{Error, Result};
use crate::hal::Segment;
use crate::handle::{HandleKind, MemoryHandle};
use crate::ipc::{OpenDeadline, Shared};
use crate::types::{Access, Address, SharedBytes};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

impl VirtualRange {
    /// Opens memory that a process has exported, as [`Context::open_memory`](crate::Context::open_memory) does,
    /// and maps it at the start of this range. When the result and what uses it is gone, nothing is mapped there
    /// any more, and the addresses stay reserved: memory can come and go at one address.
    ///
    /// # Errors
    /// As [`Context::open_memory`](crate::Context::open_memory); [`Error::InvalidArgument`] if something is mapped
    /// there, or the range is too short: what is mapped is all of the memory's segment, which has the memory's
    /// length rounded up to at most 2 MiB more; [`Error::Unsupported`] for memory that shares its segment, and for
    /// memory of pieces.
    pub fn open_memory(self: &Arc<Self>, handle: &MemoryHandle, access: Access) -> Result<Memory> {
        self.open_by(handle, access, &self.core.deadline())
    }

    /// Opens memory as [`open_memory`](Self::open_memory) does, and waits for other processes for at most `timeout`.
    ///
    /// # Errors
    /// As [`open_memory`](Self::open_memory); [`Error::TimedOut`].
    pub fn open_memory_timeout(
        self: &Arc<Self>,
        handle: &MemoryHandle,
        access: Access,
        timeout: Duration,
    ) -> Result<Memory> {
        self.open_by(handle, access, &OpenDeadline::after(timeout))
    }

    fn open_by(
        self: &Arc<Self>,
        handle: &MemoryHandle,
        access: Access,
        deadline: &OpenDeadline,
    ) -> Result<Memory> {
        let fields = handle.fields();
        if fields.offset != 0 {
            return Err(Error::Unsupported(
                "only memory that has its segment alone can be opened at an address: allocate it in a context \
                 without pooling (`ContextOptions::pooling(false)`)"
                    .into(),
            ));
        }
        let (memory, _) = PhysicalMemory::open_segment(
            &self.core,
            HandleKind::Memory,
            &fields,
            access,
            deadline,
        )?;
        let attachment = memory.attachment().map(Arc::clone);
        let attachment = attachment.ok_or(Error::Protocol("opened memory has no exporter"))?;
        let len = memory.len();
        self.map_used(0, &memory, 0..len, Some(access), 1)?;
        let segment = Arc::new(PlacedSegment {
            range: Arc::clone(self),
            len,
            access,
        });
        let imported = Imported::new(attachment, segment);
        Memory::placed(imported, &fields, access, deadline)
    }
}

/// A mapping at the start of a range, which is unmapped on drop.
struct PlacedSegment {
    range: Arc<VirtualRange>,
    len: usize,
    access: Access,
}

impl Drop for PlacedSegment {
    fn drop(&mut self) {
        self.range.unmap_used(0);
    }
}

impl Shared for PlacedSegment {
    fn len(&self) -> usize {
        self.len
    }

    fn descriptor(&self, _access: Access) -> Result<Arc<OwnedFd>> {
        Err(Error::invalid("only the exporter of memory can share it"))
    }
}

impl Segment for PlacedSegment {
    fn start(&self) -> Address {
        self.range.range.start()
    }

    fn host_bytes(&self) -> Option<SharedBytes<'_>> {
        let bytes = self.range.range.host_bytes(self.access)?;
        bytes.slice(..self.len).ok()
    }

    fn populate(&self, _offset: usize, _len: usize) {
        // An exporter's memory, in its pages.
    }

    fn release_finished(&self) {
        self.range.range.release_finished();
    }

    fn release_soon(&self) {
        self.range.range.release_soon();
    }
}
