//! Handles to what is mapped in a virtual range.

use super::VirtualRange;
use crate::api::core::ContextCore;
use crate::error::{Error, Result};
use crate::handle::{Fields, MemoryHandle};
use crate::ipc::{ExportCells, Particulars, Piece, PiecePart, PieceSet, PiecedMemory, Shared};
use crate::types::Access;
use crate::types::byte_range;
use crate::types::report::ObjectKind;
use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

/// An export of what was mapped in a part of a [`VirtualRange`]. Dropping it makes its handles stale;
/// processes that have opened the memory keep it.
///
/// It is for the memory that was mapped when it was made. Unmapping that, mapping other memory there, or
/// dropping the range changes nothing of it. Any thread may use it.
pub struct VirtualRangeExport {
    core: Arc<ContextCore>,
    memory: Arc<dyn Shared>,
    /// The number of the segment that importers map.
    number: u32,
    /// Bytes from the first piece's start to the first exported one.
    offset: usize,
    len: usize,
    exports: ExportCells,
}

impl VirtualRange {
    /// Exports what is mapped in a range of bytes, as one piece of memory: another process that opens the
    /// handle has the same bytes, in the same order and with nothing between them, as one
    /// [`Memory`](crate::Memory). The importer maps every mapping that the range touches as a whole. The access
    /// that the mappings have here does not matter.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a range of which a part has nothing mapped, and for physical
    /// memory that was itself opened from a handle; [`Error::LimitReached`] for more than 131,072
    /// mappings; limits of the system.
    pub fn export(&self, range: impl RangeBounds<usize>) -> Result<VirtualRangeExport> {
        let range = byte_range::resolve(range, self.len)?;
        if range.is_empty() {
            return Err(Error::invalid("no bytes are no memory"));
        }
        let mapped = self.mapped();
        let first = mapped.range(..=range.start).next_back();
        let start = first.map_or(range.start, |(start, _)| *start);
        let (mut next, mut pieces) = (range.start, Vec::new());
        for (at, mapping) in mapped.range(start..range.end) {
            let end = at + mapping.len;
            // The first may begin before the range, and end before it too.
            if *at > next || end <= next {
                break;
            }
            pieces.push(Piece {
                object: mapping.memory.shared()?,
                part: PiecePart {
                    whole: mapping.memory.len() as u64,
                    offset: mapping.memory_offset as u64,
                    len: mapping.len as u64,
                },
            });
            next = end;
        }
        drop(mapped);
        if next < range.end {
            return Err(Error::invalid(format!(
                "nothing is mapped at byte {next} of the range, so bytes {} to {} cannot be shared as one; \
                 map memory there, or share the parts by themselves",
                range.start, range.end
            )));
        }
        let memory = PiecedMemory(PieceSet::new(pieces)?);
        // So that this caller learns what the driver refuses, not the importer.
        memory.prepare()?;
        Ok(VirtualRangeExport {
            core: Arc::clone(&self.core),
            memory: Arc::new(memory),
            number: self.core.next_segment_number(),
            offset: range.start - start,
            len: range.len(),
            exports: ExportCells::default(),
        })
    }
}

impl VirtualRangeExport {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether nothing is exported, which is never so.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a handle to the memory.
    ///
    /// # Errors
    /// Limits of the system.
    pub fn handle(&self) -> Result<MemoryHandle> {
        self.handle_for(Access::ReadWrite)
    }

    /// Returns a handle with which the memory can be opened for reading only.
    ///
    /// # Errors
    /// As [`handle`](Self::handle).
    pub fn handle_read_only(&self) -> Result<MemoryHandle> {
        self.handle_for(Access::ReadOnly)
    }

    fn handle_for(&self, access: Access) -> Result<MemoryHandle> {
        self.core.check_birth()?;
        let credential = match self.exports.get(access) {
            Some(credential) => credential,
            None => {
                let particulars = Particulars {
                    kind: ObjectKind::Device,
                    len: self.len as u64,
                    allocation: Arc::as_ptr(&self.memory).cast::<()>().addr(),
                };
                let (exporter, number) = (self.core.exporter(), self.number);
                exporter.export_at(&self.exports, particulars, &self.memory, number, access)?
            }
        };
        Ok(MemoryHandle::new(&Fields {
            read_only: access == Access::ReadOnly,
            segment: self.number,
            offset: self.offset as u64,
            length: self.len as u64,
            ..self.core.handle_fields(credential)
        }))
    }
}

impl Drop for VirtualRangeExport {
    fn drop(&mut self) {
        let exporter = self.core.exporter();
        for export in self.exports.all() {
            // An importer that has opened it keeps the memory by itself.
            exporter.retire(export.record, true, None);
        }
        exporter.reclaim();
    }
}

impl fmt::Debug for VirtualRangeExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualRangeExport")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
