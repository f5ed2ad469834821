//! Memory that the program allocated with the driver, without this library.

use crate::api::core::{ContextCore, ObjectName};
use crate::error::{Error, Result};
use crate::hal::Segment;
use crate::handle::{Fields, MemoryHandle};
use crate::ipc::{ExportCells, Particulars, Shared};
use crate::types::report::ObjectKind;
use crate::types::{Access, Address};
use std::ptr;
use std::sync::Arc;

/// A part of an allocation that belongs to the program.
pub(super) struct Adopted {
    core: Arc<ContextCore>,
    /// The whole allocation.
    segment: Arc<dyn Segment>,
    number: u32,
    offset: usize,
    len: usize,
    exports: ExportCells,
    name: ObjectName,
}

impl Adopted {
    pub(super) fn new(
        core: &Arc<ContextCore>,
        segment: Arc<dyn Segment>,
        offset: usize,
        len: usize,
    ) -> Self {
        Self {
            core: Arc::clone(core),
            // Importers unmap the whole allocation when they have closed what they opened.
            number: core.number_of_adopted(&segment),
            segment,
            offset,
            len,
            exports: ExportCells::default(),
            name: ObjectName::default(),
        }
    }

    pub(super) fn start(&self) -> Address {
        self.segment.start().offset(self.offset)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn segment(&self) -> (&dyn Segment, usize) {
        (&*self.segment, self.offset)
    }

    pub(super) fn set_name(&self, name: &str) {
        self.name.set(name);
        for export in self.exports.all() {
            self.core.exporter().set_name(export.record, name);
        }
    }

    pub(super) fn name(&self) -> Option<String> {
        self.name.get()
    }

    pub(super) fn core(&self) -> &ContextCore {
        &self.core
    }

    /// Returns whether it is all of one allocation of the program's.
    pub(super) fn is_whole(&self) -> bool {
        self.offset == 0 && self.len == self.segment.len() && self.segment.pieces().is_none()
    }

    /// Lets a holder answer for the memory.
    pub(super) fn hand_over(&self) {
        for export in self.exports.all() {
            drop(self.core.exporter().hand_over(export.record));
        }
    }

    /// Returns a handle to the bytes from `offset` to the end.
    pub(super) fn handle(&self, offset: usize, access: Access) -> Result<MemoryHandle> {
        if offset >= self.len {
            return Err(Error::invalid(format!(
                "offset {offset} is not inside {} bytes of memory",
                self.len
            )));
        }
        let credential = match self.exports.get(access) {
            Some(credential) => credential,
            None => {
                let memory: Arc<dyn Shared> = Arc::clone(&self.segment) as _;
                memory.prepare()?;
                let exporter = self.core.exporter();
                let particulars = Particulars {
                    kind: ObjectKind::Device,
                    len: self.len as u64,
                    allocation: ptr::from_ref(self).addr(),
                };
                let exported =
                    exporter.export_at(&self.exports, particulars, &memory, self.number, access)?;
                if let Some(name) = self.name.get() {
                    exporter.set_name(exported.record, &name);
                }
                exported
            }
        };
        Ok(MemoryHandle::new(&Fields {
            read_only: access == Access::ReadOnly,
            segment: self.number,
            offset: (self.offset + offset) as u64,
            length: (self.len - offset) as u64,
            ..self.core.handle_fields(credential)
        }))
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        let exporter = self.core.exporter();
        for export in self.exports.all() {
            // The program frees the memory, when it wants to.
            exporter.retire(export.record, true, None);
        }
        exporter.reclaim();
    }
}
