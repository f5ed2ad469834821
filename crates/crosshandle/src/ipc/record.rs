//! Records: the numbers under which a context's objects are known to importers.

use super::arena::MAX_RECORDS;
use crate::error::{Error, Result};
use crate::ipc::broker::protocol::BackendBlob;
use crate::types::Access;
use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that can be shared: something with a descriptor.
pub(crate) trait Shared: Any + Send + Sync {
    /// Bytes behind the descriptor.
    fn len(&self) -> usize;

    /// Does now what [`descriptor`](Self::descriptor) must not fail at once a handle was given
    /// away.
    fn prepare(&self) -> Result<()> {
        Ok(())
    }

    /// A descriptor that allows this access and no more, as far as the driver knows limits.
    fn descriptor(&self, access: Access) -> Result<Arc<OwnedFd>>;

    /// What importers need beside the descriptor. Asked for after that was made.
    fn note(&self) -> BackendBlob {
        BackendBlob::NONE
    }
}

/// A record in use: one shared or shareable object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Where an object keeps the record under which it is exported, once it is.
#[derive(Default)]
pub(crate) struct RecordCell(AtomicU64);

impl RecordCell {
    #[inline]
    pub(crate) fn get(&self) -> Option<Record> {
        // A generation in use is odd, so never zero.
        let packed = self.0.load(Ordering::SeqCst);
        (packed != 0).then_some(Record {
            index: (packed >> 32) as u32,
            generation: packed as u32,
        })
    }

    /// Keeps `record`, unless another one is kept already.
    pub(super) fn keep(&self, record: Record) -> Record {
        let packed = u64::from(record.index) << 32 | u64::from(record.generation);
        let kept = self
            .0
            .compare_exchange(0, packed, Ordering::SeqCst, Ordering::Acquire);
        match kept {
            Ok(_) => record,
            Err(_) => self.get().unwrap_or(record),
        }
    }
}

/// What an export record lets importers fetch.
pub(super) struct Export {
    pub(super) memory: Arc<dyn Shared>,
    /// Its number.
    pub(super) segment: u32,
    pub(super) access: Access,
}

/// All records of a context.
#[derive(Default)]
pub(super) struct Records {
    pub(super) free: Vec<u32>,
    used: u32,
    /// What each record exports, if it is memory.
    pub(super) exports: Vec<Option<Export>>,
    /// Freed, but still open somewhere; with what must not be reused until it is closed.
    pub(super) retired: VecDeque<(u32, KeepAlive)>,
    /// Nothing is reused any more, so nothing has to be kept.
    pub(super) is_closed: bool,
}

/// Something that is kept until no importer can see it.
pub(crate) type KeepAlive = Option<Box<dyn Any + Send + Sync>>;

impl Records {
    pub(super) fn set_export(&mut self, record: u32, export: Export) {
        let record = record as usize;
        if record >= self.exports.len() {
            self.exports.resize_with(record + 1, || None);
        }
        self.exports[record] = Some(export);
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.used == MAX_RECORDS
    }

    pub(super) fn take_index(&mut self) -> Result<u32> {
        if let Some(index) = self.free.pop() {
            return Ok(index);
        }
        if self.used == MAX_RECORDS {
            return Err(Error::LimitReached {
                what: format!("this context shares {MAX_RECORDS} objects already"),
                remedy: "free some, or use a second context".into(),
            });
        }
        self.used += 1;
        Ok(self.used - 1)
    }
}
