//! Buffer regions that are mapped for the host.
//!
//! If the host can access the buffer's memory directly, mapping only returns an address. Otherwise
//! the region is copied to host memory when it is mapped. When it is unmapped, the region is copied
//! back if the host may have changed it.

use super::Buffer;
use super::storage::View;
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::queue::destination::Destination;
use crosshandle::{Access, AllocationOptions, Command, Memory, MemoryKind, MemoryRange};
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_MAP_FLAG_READ, UR_MAP_FLAG_WRITE, UR_MAP_FLAG_WRITE_INVALIDATE_REGION, ur_map_flags_t,
    ur_result_t,
};

#[derive(Default)]
pub(super) struct Mappings(Lock<Vec<Mapping>>);

/// A region that is mapped for the host.
pub(crate) struct Mapping {
    /// The address at which the host accesses the region.
    address: usize,
    /// The offset of the region in the storage, in bytes.
    offset: usize,
    len: usize,
    /// Whether the host may change the region.
    is_writable: bool,
    copy: HostCopy,
}

/// The memory through which the host accesses a mapped region.
enum HostCopy {
    /// The host accesses the buffer's memory directly.
    None,
    /// The host accesses the user's memory, which the buffer mirrors.
    Mirror,
    /// The host accesses memory that was allocated for the mapping.
    Staging(Memory),
}

impl Buffer {
    /// Maps a region for the host. Returns the region's address, the mapping, and the command that
    /// makes the contents available. The address is valid when the command is complete. After
    /// submitting the command, the caller must pass the mapping to [`note`](Self::note).
    pub(crate) fn map(
        &self,
        destination: &dyn Destination,
        offset: usize,
        len: usize,
        flags: ur_map_flags_t,
    ) -> Result<(*mut c_void, Mapping, Command)> {
        let offset = self.place(offset, len)?;
        let (pointer, copy) = match self.storage.view(offset)? {
            View::Direct(pointer) => (pointer, HostCopy::None),
            View::Mirror(pointer) => (pointer, HostCopy::Mirror),
            View::None => {
                let options = AllocationOptions::new(len.max(1)).kind(MemoryKind::Host);
                let staging = self.storage.context().allocate_with(options)?;
                (staging.bytes()?.as_ptr(), HostCopy::Staging(staging))
            }
        };
        let mapping = Mapping {
            address: pointer.addr(),
            offset,
            len,
            is_writable: flags & (UR_MAP_FLAG_WRITE | UR_MAP_FLAG_WRITE_INVALIDATE_REGION) != 0,
            copy,
        };
        // The contents are copied unless the caller overwrites the whole region without reading it.
        let is_read =
            flags & UR_MAP_FLAG_READ != 0 || flags & UR_MAP_FLAG_WRITE_INVALIDATE_REGION == 0;
        let command = match mapping.host_range(self)? {
            Some(host) if is_read => {
                let from = self
                    .storage
                    .range(destination, offset, len, Access::ReadOnly)?;
                Command::copy(from, host)?
            }
            _ => Command::marker(),
        };
        Ok((pointer.cast(), mapping, command))
    }

    /// Stores a mapping until the region is unmapped.
    pub(crate) fn note(&self, mapping: Mapping) {
        self.mappings.0.lock().push(mapping);
    }

    /// Removes the latest mapping at an address. Returns the mapping, and the command that copies
    /// the host's changes back.
    pub(crate) fn unmap(
        &self,
        destination: &dyn Destination,
        pointer: *mut c_void,
    ) -> Result<(Mapping, Command)> {
        let mut mappings = self.mappings.0.lock();
        let index = mappings
            .iter()
            .rposition(|mapping| mapping.address == pointer.addr())
            .ok_or_else(|| {
                Failure::new(
                    ur_result_t::UR_RESULT_ERROR_INVALID_MEM_OBJECT,
                    "no region of this buffer is mapped at this address",
                )
            })?;
        let mapping = &mappings[index];
        let command = match mapping.host_range(self)? {
            Some(host) if mapping.is_writable => {
                let (offset, len) = (mapping.offset, mapping.len);
                let to = self
                    .storage
                    .range(destination, offset, len, Access::ReadWrite)?;
                Command::copy(host, to)?
            }
            _ => Command::marker(),
        };
        Ok((mappings.remove(index), command))
    }
}

impl Mapping {
    /// Returns the host's copy of the region. Returns `None` if the host accesses the buffer's
    /// memory directly.
    fn host_range(&self, buffer: &Buffer) -> Result<Option<MemoryRange>> {
        Ok(match &self.copy {
            HostCopy::None => None,
            HostCopy::Mirror => buffer.storage.mirrored(self.offset, self.len),
            HostCopy::Staging(staging) => Some(staging.range(..self.len)?),
        })
    }
}
