//! Memory opened from a handle.

use crate::api::core::{ContextCore, Imported};
use crate::error::{Error, Result};
use crate::hal::Segment;
use crate::handle::{Fields, HandleKind};
use crate::ipc::Credential;
use crate::observe;
use crate::types::{Access, Address};
use std::sync::Arc;

/// Memory that was opened once; each open of a handle makes one.
pub(crate) struct Opened {
    imported: Arc<Imported>,
    record: u32,
    offset: usize,
    len: usize,
    access: Access,
}

impl Opened {
    #[inline]
    pub(super) fn open(core: &Arc<ContextCore>, fields: &Fields, access: Access) -> Result<Self> {
        core.check_memory(fields, access)?;
        let imported = core.imported(fields, access)?;
        // Cannot overflow: the handle was checked. What is mapped is what counts.
        let (end, actual) = (fields.offset + fields.length, imported.memory.len() as u64);
        if end > actual {
            return Err(Error::Extent { end, actual });
        }
        imported.attachment.hold(&Credential::of(fields))?;
        let (context, len) = (fields.context, fields.length as usize);
        let name = || imported.attachment.name_of(fields.record);
        observe::opened(HandleKind::Memory, context, fields.record, len, name);
        Ok(Self {
            record: fields.record,
            offset: fields.offset as usize,
            len,
            access,
            imported,
        })
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

    pub(super) fn segment(&self) -> (&dyn Segment, usize) {
        (&*self.imported.memory, self.offset)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.imported.attachment.release(self.record);
        observe::closed(HandleKind::Memory);
    }
}
