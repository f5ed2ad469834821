//! Handles to the memory that is mapped in a virtual range.

use super::VirtualRange;
use crate::api::core::ContextCore;
use crosshandle_handle::{Fields, MemoryHandle};
use crosshandle_ipc::{
    BackendObject, ExportCells, Particulars, Piece, PiecePart, PieceSet, PiecedMemory,
};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::report::ObjectKind;
use crosshandle_types::{Access, byte_range};
use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

/// An export of the memory that was mapped in a part of a [`VirtualRange`]. Dropping it makes its
/// handles stale. Processes that have opened the memory keep it.
///
/// The export refers to the memory that was mapped when the export was made. It does not change if
/// that memory is unmapped, other memory is mapped there, or the range is dropped. Any thread may
/// use it.
pub struct VirtualRangeExport {
    core: Arc<ContextCore>,
    memory: Arc<dyn BackendObject>,
    /// The number of the segment that importers map.
    number: u32,
    /// The number of bytes between the start of the first piece and the start of the exported
    /// range.
    offset: usize,
    len: usize,
    exports: ExportCells,
}

impl VirtualRange {
    /// Exports the memory that is mapped in a range of bytes as one object. An importer opens it as
    /// one [`Memory`](crate::Memory) with the same bytes in the same order, without gaps.
    ///
    /// The importer always maps whole mappings, even if the range contains only a part of one. The
    /// access of the mappings in this process does not matter.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] if a part of the range is not mapped, and for physical memory
    ///   that was itself opened from a handle.
    /// - [`Error::LimitReached`] for more than 131,072 mappings.
    /// - Errors of the operating system, if one of its limits is reached.
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
            // The first mapping may begin before the range, and may also end before it.
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
        // If the driver refuses, this caller gets the error, and not a later importer.
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

    /// Always returns `false`, because an export is never empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a handle to the memory.
    ///
    /// # Errors
    /// Errors of the operating system, if one of its limits is reached.
    pub fn handle(&self) -> Result<MemoryHandle> {
        self.handle_for(Access::ReadWrite)
    }

    /// Returns a handle that opens the memory for reading only.
    ///
    /// # Errors
    /// The errors of [`handle`](Self::handle).
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
                exporter.export_at(
                    &self.exports,
                    particulars,
                    Arc::clone(&self.memory),
                    number,
                    access,
                )?
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
            // Importers that have opened the memory keep it themselves.
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
