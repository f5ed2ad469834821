//! Opens memory of other processes at addresses that this process has chosen.

use super::VirtualRange;
use crate::api::core::Imported;
use crate::api::memory::Memory;
use crate::api::physical::PhysicalMemory;
use crosshandle_hal::BackendSegment;
use crosshandle_handle::{HandleKind, MemoryHandle};
use crosshandle_ipc::{BackendObject, OpenDeadline};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Access, Address, SharedBytes};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

impl VirtualRange {
    /// Opens memory as [`Context::open_memory`](crate::Context::open_memory) does, and maps it at
    /// the start of this range.
    ///
    /// The memory is unmapped when the result and everything that uses it is dropped. The addresses
    /// stay reserved, so other memory can be opened at the same address later.
    ///
    /// The whole segment of the memory is mapped. It is up to 2 MiB longer than the memory.
    ///
    /// # Errors
    /// - The errors of [`Context::open_memory`](crate::Context::open_memory).
    /// - [`Error::InvalidArgument`] if the addresses are already mapped, or if the range is shorter
    ///   than the segment.
    /// - [`Error::Unsupported`] for memory that shares its segment, and for memory that consists of
    ///   pieces.
    pub fn open_memory(self: &Arc<Self>, handle: &MemoryHandle, access: Access) -> Result<Memory> {
        self.open_by(handle, access, &self.core.deadline())
    }

    /// Opens memory as [`open_memory`](Self::open_memory) does, and waits for other processes for
    /// at most `timeout`.
    ///
    /// # Errors
    /// The errors of [`open_memory`](Self::open_memory), and [`Error::TimedOut`].
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

/// A mapping at the start of a range. Dropping it unmaps the memory.
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

impl BackendObject for PlacedSegment {
    fn len(&self) -> usize {
        self.len
    }

    fn descriptor(&self, _access: Access) -> Result<Arc<OwnedFd>> {
        Err(Error::invalid("only the exporter of memory can share it"))
    }
}

impl BackendSegment for PlacedSegment {
    fn start(&self) -> Address {
        self.range.range.start()
    }

    fn host_bytes(&self) -> Option<SharedBytes<'_>> {
        let bytes = self.range.range.host_bytes(self.access)?;
        bytes.slice(..self.len).ok()
    }

    fn populate(&self, _offset: usize, _len: usize) {
        // Nothing to do, because the exporter has already allocated the pages.
    }

    fn release_finished(&self) {
        self.range.range.release_finished();
    }

    fn release_soon(&self) {
        self.range.range.release_soon();
    }
}
