//! Mapped regions of buffers.
//!
//! If the host can use a buffer's memory in place, mapping only returns an address. Otherwise the
//! region is copied to host memory when it is mapped, and back when it is unmapped.

use super::Buffer;
use super::storage::View;
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::queue::destination::Destination;
use crosshandle::{AllocationOptions, Command, Memory, MemoryKind, MemoryRange};
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_MAP_FLAG_READ, UR_MAP_FLAG_WRITE, UR_MAP_FLAG_WRITE_INVALIDATE_REGION, ur_map_flags_t,
    ur_result_t,
};

/// The mapped regions of a buffer.
#[derive(Default)]
pub(super) struct Mappings(Lock<Vec<Mapping>>);

/// A mapped region.
pub(crate) struct Mapping {
    /// The address for the host.
    address: usize,
    /// The offset in the storage at which the region starts, and its length, in bytes.
    offset: usize,
    len: usize,
    /// Whether the host was allowed to change it.
    is_writable: bool,
    copy: HostCopy,
}

/// The memory in which the host sees a mapped region.
enum HostCopy {
    /// The memory itself.
    None,
    /// The user's memory, for which the buffer's stands.
    Mirror,
    /// Memory that was allocated for the mapping.
    Staging(Memory),
}

impl Buffer {
    /// Maps a region: returns the address at which the host finds it once the queue's command is done. The
    /// caller [notes](Self::note) the mapping when it has submitted the command.
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
        // Only a region that is to be written anew may hold anything.
        let is_read =
            flags & UR_MAP_FLAG_READ != 0 || flags & UR_MAP_FLAG_WRITE_INVALIDATE_REGION == 0;
        let command = match mapping.host_range(self)? {
            Some(host) if is_read => {
                Command::copy(self.storage.range(destination, offset, len)?, host)?
            }
            _ => Command::marker(),
        };
        Ok((pointer.cast(), mapping, command))
    }

    /// Remembers a mapping until it is unmapped.
    pub(crate) fn note(&self, mapping: Mapping) {
        self.mappings.0.lock().push(mapping);
    }

    /// Forgets the latest mapping at an address, and returns it with the command that brings back what
    /// the host has written.
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
            Some(host) if mapping.is_writable => Command::copy(
                host,
                self.storage
                    .range(destination, mapping.offset, mapping.len)?,
            )?,
            _ => Command::marker(),
        };
        Ok((mappings.remove(index), command))
    }
}

impl Mapping {
    /// Returns the copy of the region on the host, if it has one.
    fn host_range(&self, buffer: &Buffer) -> Result<Option<MemoryRange>> {
        Ok(match &self.copy {
            HostCopy::None => None,
            HostCopy::Mirror => buffer.storage.mirrored(self.offset, self.len),
            HostCopy::Staging(staging) => Some(staging.range(..self.len)?),
        })
    }
}
