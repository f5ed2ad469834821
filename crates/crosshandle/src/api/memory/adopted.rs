//! Adopted memory, which the program allocated with the driver, and lent parts of memory, which
//! have handles of their own.

use crate::api::core::{Allocation, ContextCore, ObjectName};
use crosshandle_hal::BackendSegment;
use crosshandle_handle::{Fields, MemoryHandle};
use crosshandle_ipc::{BackendObject, ExportCells, KeepAlive, Particulars};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Access, Address, MemoryKind};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

/// A part of an allocation that belongs to the program, or a lent part of other memory.
pub(super) struct Adopted {
    core: Arc<ContextCore>,
    /// The whole allocation.
    segment: Arc<dyn BackendSegment>,
    number: u32,
    offset: usize,
    len: usize,
    kind: MemoryKind,
    exports: ExportCells,
    name: ObjectName,
    /// The object to drop once this part is dropped and no importer has it open.
    owner: KeepAlive,
}

impl Adopted {
    pub(super) fn new(
        core: &Arc<ContextCore>,
        segment: Arc<dyn BackendSegment>,
        offset: usize,
        len: usize,
    ) -> Self {
        Self {
            core: Arc::clone(core),
            // Each adopted segment has a number of its own, so importers unmap it when they have
            // closed all of it.
            number: core.number_of_adopted(&segment),
            segment,
            offset,
            len,
            kind: MemoryKind::Device,
            exports: ExportCells::default(),
            name: ObjectName::default(),
            owner: None,
        }
    }

    /// Creates a part of an allocation's block. It has the segment's number, so importers reuse a
    /// mapping that they already have.
    pub(super) fn part_of_allocation(
        allocation: &Allocation,
        part: Range<usize>,
        owner: KeepAlive,
    ) -> Self {
        let (segment, number, offset) = allocation.shared_segment();
        Self {
            core: Arc::clone(allocation.core()),
            segment,
            number,
            offset: offset + part.start,
            len: part.len(),
            kind: allocation.kind(),
            exports: ExportCells::default(),
            name: ObjectName::default(),
            owner,
        }
    }

    /// Creates a part of adopted memory. It has the segment's number, so importers reuse a mapping
    /// that they already have.
    pub(super) fn part(&self, part: Range<usize>, owner: KeepAlive) -> Self {
        Self {
            core: Arc::clone(&self.core),
            segment: Arc::clone(&self.segment),
            number: self.number,
            offset: self.offset + part.start,
            len: part.len(),
            kind: self.kind,
            exports: ExportCells::default(),
            name: ObjectName::default(),
            owner,
        }
    }

    pub(super) fn kind(&self) -> MemoryKind {
        self.kind
    }

    pub(super) fn start(&self) -> Address {
        self.segment.start().offset(self.offset)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn segment(&self) -> (&dyn BackendSegment, usize) {
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

    pub(super) fn core(&self) -> &Arc<ContextCore> {
        &self.core
    }

    /// Returns whether this is a whole allocation of the program that no other object owns.
    pub(super) fn is_whole(&self) -> bool {
        self.offset == 0
            && self.len == self.segment.len()
            && self.segment.pieces().is_none()
            && self.owner.is_none()
    }

    /// Hands the memory over to a holder. All existing handles stay valid.
    pub(super) fn hand_over(&self) {
        for export in self.exports.all() {
            drop(self.core.exporter().hand_over(export.record));
        }
    }

    /// Returns a handle to the bytes from `offset` to the end of the part.
    pub(super) fn handle(&self, offset: usize, access: Access) -> Result<MemoryHandle> {
        if offset >= self.len {
            return Err(Error::invalid(format!(
                "offset {offset} is not inside {} bytes of memory",
                self.len
            )));
        }
        self.core.check_birth()?;
        let credential = match self.exports.get(access) {
            Some(credential) => credential,
            None => {
                let memory: Arc<dyn BackendObject> = Arc::clone(&self.segment) as _;
                memory.prepare()?;
                let exporter = self.core.exporter();
                let particulars = Particulars {
                    kind: self.kind.into(),
                    len: self.len as u64,
                    allocation: ptr::from_ref(self).addr(),
                };
                let exported =
                    exporter.export_at(&self.exports, particulars, memory, self.number, access)?;
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
        // Without an owner, the program decides when it frees the memory.
        let owner = self.owner.take().map(Arc::new);
        for export in self.exports.all() {
            let keep = owner.as_ref().map(|owner| Box::new(Arc::clone(owner)) as _);
            match keep {
                Some(_) => exporter.retire_loaned(export.record, keep),
                None => exporter.retire(export.record, true, None),
            }
        }
        drop(owner);
        exporter.reclaim();
    }
}

#[cfg(test)]
mod tests {
    use crate::{Context, Device, Error};
    use std::sync::Arc;

    #[test]
    fn the_owner_of_what_is_lent_goes_when_nobody_has_it_open() {
        let context = Context::new(&Device::find("host").unwrap()).unwrap();
        let memory = Arc::new(context.allocate(4096).unwrap());
        memory.write(100, b"bytes").unwrap();
        let owner = Arc::new(());
        let is_kept = || Arc::strong_count(&owner) > 1;
        let part = memory.lend(100..200, Arc::clone(&owner)).unwrap();
        let again = memory.lend(150.., Arc::clone(&owner)).unwrap();
        drop(again);
        let handle = part.handle().unwrap();
        let opened = context.open_memory(&handle).unwrap();
        assert_eq!(opened.len(), 100);
        drop((part, memory));
        context.allocate(64).unwrap().handle().unwrap();
        assert!(is_kept(), "it is open");
        let mut bytes = [0; 5];
        opened.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"bytes");
        assert!(matches!(context.open_memory(&handle), Err(Error::Stale)));
        drop(opened);
        drop(context);
        assert!(!is_kept(), "nobody has it open");
    }

    #[test]
    fn only_parts_that_are_there_are_lent() {
        let context = Context::new(&Device::find("host").unwrap()).unwrap();
        let memory = Arc::new(context.allocate(100).unwrap());
        let opened = Arc::new(context.open_memory(&memory.handle().unwrap()).unwrap());
        let refused = [
            memory.lend(50..50, ()),
            memory.lend(..101, ()),
            opened.lend(.., ()),
        ];
        for result in refused {
            assert!(
                matches!(result, Err(Error::InvalidArgument(_))),
                "{result:?}"
            );
        }
    }
}
