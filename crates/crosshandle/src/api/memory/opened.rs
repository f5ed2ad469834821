//! Memory opened from a handle.

use crate::api::core::{ContextCore, Imported};
use crosshandle_hal::{BackendSegment, Operand};
use crosshandle_handle::{Fields, HandleKind};
use crosshandle_ipc::{Credential, OpenDeadline};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::observe::{self, trace};
use crosshandle_types::{Access, Address};
use std::sync::Arc;

/// Memory that was opened once. Each open of a handle creates one.
pub(crate) struct Opened {
    imported: Arc<Imported>,
    record: u32,
    offset: usize,
    len: usize,
    access: Access,
}

impl Opened {
    #[inline]
    pub(super) fn open(
        core: &Arc<ContextCore>,
        fields: &Fields,
        access: Access,
        deadline: &OpenDeadline,
    ) -> Result<Self> {
        core.check_memory(fields, access)?;
        let begun = trace::begin();
        let imported = core.imported(fields, access, deadline)?;
        let opened = Self::of(imported, fields, access, deadline)?;
        begun.end(|| opened.step(fields));
        Ok(opened)
    }

    /// Counts an open of memory whose segment is mapped here.
    #[inline]
    pub(super) fn of(
        imported: Arc<Imported>,
        fields: &Fields,
        access: Access,
        deadline: &OpenDeadline,
    ) -> Result<Self> {
        // The sum cannot overflow, because the handle was checked. The actual length of the mapping
        // is the limit.
        let (end, actual) = (fields.offset + fields.length, imported.memory.len() as u64);
        if end > actual {
            return Err(Error::Extent { end, actual });
        }
        let credential = Credential::of(fields);
        imported.attachment.hold(&credential, deadline)?;
        let (record, len) = (fields.record, fields.length as usize);
        // A reference to the result would force it into memory, from which it would then be copied.
        let attachment = &*imported.attachment;
        let name = move || attachment.name_of(record);
        observe::opened(HandleKind::Memory, fields.context, record, len, name);
        Ok(Self {
            record,
            offset: fields.offset as usize,
            len,
            access,
            imported,
        })
    }

    /// Counts the bytes that a command copies of an opened operand, for the exporter's reports.
    #[inline]
    pub(crate) fn count_copied(operand: &Operand, bytes: usize) {
        let opened = operand.keep.as_ref().and_then(|keep| keep.downcast_ref());
        if let Some(Self { imported, .. }) = opened {
            imported.attachment.ledger().add_copied(bytes as u64);
        }
    }

    /// Returns the step of the timeline that opened the memory.
    #[cold]
    fn step(&self, fields: &Fields) -> trace::Step<'static> {
        let object = trace::Object {
            exporter: fields.exporter,
            context: fields.context,
            record: self.record,
            generation: fields.generation,
            name: self.name(),
        };
        trace::Step::Open(HandleKind::Memory, object, self.len)
    }

    #[inline]
    pub(super) fn start(&self) -> Address {
        self.imported.memory.start().offset(self.offset)
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn name(&self) -> Option<String> {
        self.imported.attachment.name_of(self.record)
    }

    pub(super) fn access(&self) -> Access {
        self.access
    }

    pub(super) fn segment(&self) -> (&dyn BackendSegment, usize) {
        (&*self.imported.memory, self.offset)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.imported.attachment.release(self.record);
        observe::closed(HandleKind::Memory);
    }
}
