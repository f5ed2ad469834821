//! The ledger: how often an importing process has each record of one arena open.

use super::arena::MAX_RECORDS;
use crate::error::{Error, Result};
use crate::os::mapping::Mapping;
use crate::os::memfd;
use crate::types::Access;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const LEN: usize = MAX_RECORDS as usize * size_of::<AtomicU32>();

/// A mapped ledger, the importer's own or the exporter's view of it.
pub(super) struct Ledger {
    mapping: Mapping,
    is_over: AtomicBool,
}

impl Ledger {
    /// A new one, and the descriptor to send to the exporter.
    pub(super) fn create() -> Result<(Self, OwnedFd)> {
        let file = memfd::create("crosshandle-ledger", LEN as u64)
            .map_err(Error::os("creating a ledger"))?;
        Ok((Self::map(&file)?, file))
    }

    /// The one behind a descriptor that an importer sent.
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
            is_over: AtomicBool::new(false),
        })
    }

    /// Its importer has hung up, so that it counts no longer.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// How often a record below [`MAX_RECORDS`] is open.
    #[inline]
    pub(super) fn count(&self, record: u32) -> &AtomicU32 {
        assert!(record < MAX_RECORDS);
        // SAFETY: in bounds by the assertion and LEN, aligned, sealed against shrinking, alive as
        // long as `self`, and atomic.
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
