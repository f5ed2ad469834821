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

/// The segment number in records of native events. No segment has it.
pub(super) const MIRROR_SEGMENT: u32 = u32::MAX;

/// An object that can be shared by its descriptor.
pub(crate) trait Shared: Any + Send + Sync {
    /// Returns the number of bytes behind the descriptor.
    fn len(&self) -> usize;

    /// Does the steps of [`descriptor`](Self::descriptor) that may fail, so that a handle that was
    /// given away can be opened. From then on `descriptor` and [`note`](Self::note) call no driver.
    fn prepare(&self) -> Result<()> {
        Ok(())
    }

    /// Returns a descriptor that allows this access, and no more if the driver can limit it. May call
    /// a driver unless the object is [prepared](Self::prepare).
    fn descriptor(&self, access: Access) -> Result<Arc<OwnedFd>>;

    /// Returns the blob that the importer's backend needs beside the descriptor. Called after
    /// [`descriptor`](Self::descriptor).
    fn note(&self) -> BackendBlob {
        BackendBlob::NONE
    }
}

/// The number of a shared or shareable object, and the generation that tells it from the record's
/// other uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// The record under which an object is exported, once it is.
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

    /// Sets the record unless there is one, and returns the one that there is.
    pub(super) fn get_or_set(&self, record: Record) -> Record {
        let packed = u64::from(record.index) << 32 | u64::from(record.generation);
        let set = self
            .0
            .compare_exchange(0, packed, Ordering::SeqCst, Ordering::Acquire);
        match set {
            Ok(_) => record,
            Err(_) => self.get().unwrap_or(record),
        }
    }
}

/// An object that importers may fetch.
pub(super) struct Export {
    pub(super) object: Arc<dyn Shared>,
    /// The number of its segment.
    pub(super) segment: u32,
    /// The most access that handles grant.
    pub(super) access: Access,
    /// Whether asking for the descriptor calls no driver any more.
    pub(super) is_prepared: bool,
}

/// All records of a context.
#[derive(Default)]
pub(super) struct Records {
    pub(super) free: Vec<u32>,
    /// The number of records that were ever used.
    used: u32,
    /// The object that each record lets importers fetch, if any.
    pub(super) exports: Vec<Option<Export>>,
    /// Records that were freed but are still open somewhere, each with what must not be used again
    /// until they are closed.
    pub(super) retired: VecDeque<(u32, KeepAlive)>,
    /// Whether the context allocates no more, so that nothing has to be kept.
    pub(super) is_closed: bool,
}

/// A value that is kept until no importer can see what it stands for.
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
