//! Memory: segments, address ranges, and memory without a descriptor.

use crate::{BackendBlob, BackendObject};
use crosshandle_handle::DRIVER_HANDLE_SIZE;
use crosshandle_types::error::Result;
use crosshandle_types::{Access, Address, SharedBytes};
use std::sync::Arc;

/// Memory with an address and a descriptor.
pub trait BackendSegment: BackendObject {
    /// Returns the start of the segment: a device address, which on the host is also a pointer.
    fn start(&self) -> Address;

    /// Returns the segment's bytes, if the host may access them.
    fn host_bytes(&self) -> Option<SharedBytes<'_>>;

    /// Requests the best pages for a part of the segment. This is a hint: without such pages,
    /// accesses are slower.
    fn populate(&self, offset: usize, len: usize);

    /// Commits all memory of a part of the segment now, so that accessing it cannot fail. Memory
    /// that the driver allocated is always committed.
    ///
    /// # Errors
    /// Returns [`Error::OutOfMemory`](crosshandle_types::error::Error::OutOfMemory) if there is not
    /// enough memory.
    /// Pages that were committed before the failure stay committed.
    fn make_present(&self, _offset: usize, _len: usize) -> Result<()> {
        Ok(())
    }

    /// Returns the whole pages of a part to the system until they are accessed again. Their
    /// contents are arbitrary afterwards. This is a hint.
    fn give_back(&self, _offset: usize, _len: usize) {}

    /// Drops the objects that finished commands keep, as far as the backend can tell without
    /// waiting. Without this call, the backend may notice the end of a command late.
    fn release_finished(&self) {}

    /// Notes that the program has dropped memory of the segment that a command may have used. The
    /// backend then notices within a few milliseconds when the command has finished. Does not call
    /// the driver.
    fn release_soon(&self) {}
}

/// A range of reserved addresses, into which physical memory is mapped.
pub trait BackendRange: Send + Sync {
    /// Returns the start of the range.
    fn start(&self) -> Address;

    /// Returns the bytes of the whole range, if the host may access mapped memory. While the caller
    /// accesses a part, that part stays mapped with at least `access`.
    fn host_bytes(&self, access: Access) -> Option<SharedBytes<'_>>;

    /// Maps `len` bytes of physical memory at `offset`, where nothing is mapped. These are all
    /// bytes of the memory, unless the device has
    /// [`partial_mappings`](crosshandle_types::Capabilities::partial_mappings).
    fn map(
        &self,
        offset: usize,
        memory: &dyn BackendObject,
        memory_offset: usize,
        len: usize,
        access: Access,
    ) -> Result<()>;

    /// Maps one of many pieces that together fill the range. Otherwise like [`map`](Self::map), but
    /// the pieces may be accessed only after [`open`](Self::open).
    fn place(
        &self,
        offset: usize,
        memory: &dyn BackendObject,
        memory_offset: usize,
        len: usize,
        access: Access,
    ) -> Result<()> {
        self.map(offset, memory, memory_offset, len, access)
    }

    /// Grants `access` to the whole range. The caller has placed pieces everywhere in the range,
    /// with the same access.
    fn open(&self, _access: Access) -> Result<()> {
        Ok(())
    }

    /// Returns whether a mapping keeps its memory alive, so that the memory's own object may be
    /// dropped.
    fn keeps_memory(&self) -> bool {
        false
    }

    /// Drops the objects that finished commands keep (see [`BackendSegment::release_finished`]).
    fn release_finished(&self) {}

    /// Makes the backend notice soon when commands have finished (see
    /// [`BackendSegment::release_soon`]).
    fn release_soon(&self) {}

    /// Unmaps one mapping.
    fn unmap(&self, offset: usize, len: usize) -> Result<()>;

    /// Changes the access of one mapping.
    fn set_access(&self, offset: usize, len: usize, access: Access) -> Result<()>;
}

/// An importer of memory for which the driver has no descriptor.
pub trait BackendDriverHandles {
    /// Maps memory of another process by the driver's handle. The exporter claims `handle` and
    /// `len`, so neither is trusted.
    fn import_handle(&self, handle: &BackendBlob, len: usize) -> Result<Arc<dyn BackendSegment>>;
}

/// A fabric of GPUs on several hosts, which can access each other's memory.
pub trait BackendFabric {
    /// Allocates and maps at least `len` bytes, and returns the driver's handle of this memory for
    /// other hosts.
    fn create_segment(
        &self,
        len: usize,
    ) -> Result<(Arc<dyn BackendSegment>, [u8; DRIVER_HANDLE_SIZE])>;

    /// Maps memory by the driver's handle, which may come from another host. The handle and `len`
    /// are not trusted.
    fn import_segment(
        &self,
        handle: &[u8; DRIVER_HANDLE_SIZE],
        len: usize,
    ) -> Result<Arc<dyn BackendSegment>>;
}
