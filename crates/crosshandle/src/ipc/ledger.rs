//! The ledger: how often an importing process has each record of one arena open.

use super::arena::MAX_RECORDS;
use crate::error::{Error, Result};
use crate::os::mapping::Mapping;
use crate::os::memfd;
use crate::platform::{AtomicU32, Ordering};
use crate::types::Access;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;

const LEN: usize = MAX_RECORDS as usize * size_of::<AtomicU32>();

/// A mapped ledger: the importer's own, or the exporter's view of it.
pub(super) struct Ledger {
    mapping: Mapping,
    /// Whether the importer has hung up, so that its counts no longer matter.
    has_hung_up: AtomicBool,
}

impl Ledger {
    /// Makes a ledger without opens, and the descriptor to send to the exporter.
    pub(super) fn create() -> Result<(Self, OwnedFd)> {
        let file = memfd::create("crosshandle-ledger", LEN as u64)
            .map_err(Error::os("creating a ledger"))?;
        Ok((Self::map(&file)?, file))
    }

    /// Maps the ledger behind a descriptor that an importer sent.
    pub(super) fn open(file: &OwnedFd) -> Result<Self> {
        let (len, sealed) = memfd::check(file).map_err(Error::os("looking at a ledger"))?;
        if len != LEN as u64 || !sealed {
            return Err(Error::Protocol("its ledger has another size or no seal"));
        }
        Self::map(file)
    }

    fn map(file: &OwnedFd) -> Result<Self> {
        let mapping = Mapping::shared(file, LEN, 1, Access::ReadWrite)
            .map_err(Error::memory("mapping a ledger", LEN))?;
        mapping.exclude_from_dumps();
        Ok(Self {
            mapping,
            has_hung_up: AtomicBool::new(false),
        })
    }

    /// Notes that the importer has hung up.
    pub(super) fn mark_hung_up(&self) {
        self.has_hung_up.store(true, Ordering::SeqCst);
    }

    pub(super) fn has_hung_up(&self) -> bool {
        self.has_hung_up.load(Ordering::SeqCst)
    }

    /// Returns the count of a record's opens. The record is below [`MAX_RECORDS`].
    #[inline]
    pub(super) fn count(&self, record: u32) -> &AtomicU32 {
        assert!(record < MAX_RECORDS);
        // SAFETY: in bounds by the assertion and LEN. The mapping starts at a page, so counts are
        // aligned; its file is sealed against shrinking, and it lives as long as `self`. All
        // accesses, also those of other processes, are atomic, and any bits are a valid count.
        unsafe {
            &*self
                .mapping
                .start()
                .as_ptr()
                .cast::<AtomicU32>()
                .add(record as usize)
        }
    }
}
