//! Memory that the program allocated with the driver, without us.

use crate::api::context::ContextCore;
use crate::error::{Error, Result};
use crate::hal::Segment;
use crate::handle::{Fields, MemoryHandle};
use crate::ipc::{RecordCell, Shared};
use crate::pool;
use crate::types::Access;
use crate::types::Address;
use std::sync::Arc;

/// A part of an allocation of the program's.
pub(super) struct Adopted {
    core: Arc<ContextCore>,
    /// All of the allocation.
    segment: Arc<dyn Segment>,
    number: u32,
    offset: usize,
    len: usize,
    /// The records under which it is exported, for writing and for reading only.
    exports: [RecordCell; 2],
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
            segment,
            // Importers let go of all of it when they have closed what they opened.
            number: pool::next_number(core.numbers(), true),
            offset,
            len,
            exports: Default::default(),
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

    /// A handle to what starts at `offset`, up to the end.
    pub(super) fn handle(&self, offset: usize, access: Access) -> Result<MemoryHandle> {
        if offset >= self.len {
            return Err(Error::invalid(format!(
                "offset {offset} is not inside {} bytes of memory",
                self.len
            )));
        }
        let place = &self.exports[usize::from(access == Access::ReadOnly)];
        let record = match place.get() {
            Some(record) => record,
            None => {
                let memory: Arc<dyn Shared> = Arc::clone(&self.segment) as _;
                memory.prepare()?;
                self.core
                    .exporter()
                    .export_at(place, &memory, self.number, access)?
            }
        };
        Ok(MemoryHandle::new(&Fields {
            read_only: access == Access::ReadOnly,
            segment: self.number,
            offset: (self.offset + offset) as u64,
            length: (self.len - offset) as u64,
            segment_length: self.segment.len() as u64,
            ..self.core.fields(record)
        }))
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        let exporter = self.core.exporter();
        for record in self.exports.iter().filter_map(RecordCell::get) {
            // The memory is the program's: when to free it is not for us to say.
            exporter.retire(record, true, None);
        }
        exporter.reclaim();
    }
}
