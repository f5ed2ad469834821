//! The ledger: how often one importing process has each record of one context open.
//!
//! The exporter makes it and sends it, so that it takes no descriptor from an importer. Both write it.

use super::{CHUNKS, Place, capacity, file_len, place_of};
use crate::error::{Error, Result};
use crate::ipc::liveness::{LivenessLock, LivenessLocks};
use crate::ipc::open_count;
use crate::os::lock::{self, LockKind};
use crate::os::mapping::Mapping;
use crate::os::memfd;
use crate::sync::Mutex;
use crate::types::Access;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Bytes before the counts of the first chunk.
const HEADER_BYTES: usize = 4096;
/// The byte of the importer's liveness lock, behind the counts.
const LOCK_AT: u64 = 1 << 40;

/// A mapped chunk of a ledger.
pub(crate) struct LedgerChunk {
    mapping: Mapping,
    chunk: usize,
}

const fn counts_at(chunk: usize) -> usize {
    match chunk {
        0 => HEADER_BYTES,
        _ => 0,
    }
}

fn len_of(chunk: usize) -> usize {
    file_len(counts_at(chunk) + capacity(chunk) * size_of::<AtomicU32>())
}

impl LedgerChunk {
    /// Makes a chunk without opens, and its descriptor.
    fn create(chunk: usize) -> Result<(Self, OwnedFd)> {
        let len = len_of(chunk);
        let file = memfd::create("crosshandle-ledger", len as u64)
            .map_err(Error::memory("creating a ledger", len))?;
        Ok((Self::map(&file, chunk)?, file))
    }

    /// Maps the chunk behind a descriptor that an exporter sent.
    pub(crate) fn open(file: &OwnedFd, chunk: usize) -> Result<Self> {
        let (len, is_sealed) = memfd::check(file).map_err(Error::os("looking at a ledger"))?;
        if len != len_of(chunk) as u64 || !is_sealed {
            return Err(Error::Protocol("its ledger has another size or no seal"));
        }
        Self::map(file, chunk)
    }

    fn map(file: &OwnedFd, chunk: usize) -> Result<Self> {
        let len = len_of(chunk);
        let mapping = Mapping::shared(file, len, 1, Access::ReadWrite)
            .map_err(Error::memory("mapping a ledger", len))?;
        mapping.exclude_from_dumps();
        Ok(Self { mapping, chunk })
    }

    /// Returns the count of opens of the record with this index in the chunk.
    #[inline]
    fn count(&self, index: usize) -> &AtomicU32 {
        assert!(index < capacity(self.chunk));
        let offset = counts_at(self.chunk) + index * size_of::<AtomicU32>();
        // SAFETY: in bounds by the assertion and `len_of`. The mapping starts at a page, so counts
        // are aligned; its file is sealed against shrinking, and it lives as long as `self`. All
        // accesses, also those of other processes, are atomic, and any bits are a valid count.
        unsafe { self.mapping.start().add(offset).cast().as_ref() }
    }
}

/// A process's ledger: the importer's own, or the exporter's view of it.
#[derive(Default)]
pub(crate) struct Ledger {
    chunks: [OnceLock<LedgerChunk>; CHUNKS],
    /// Held while a chunk is made, so that it is made once.
    making: Mutex<()>,
    /// Whether the importer has hung up, so that its counts no longer matter.
    has_hung_up: AtomicBool,
    /// The file of the first chunk, where the importer shows by a lock that it lives.
    file: Option<OwnedFd>,
    /// That lock, in the importer.
    liveness: OnceLock<LivenessLock>,
}

impl Ledger {
    /// Makes an importer's ledger with its first chunk, and the descriptor to send. With `keeps_file`,
    /// the importer can be asked for later whether it [lives](Self::is_owner_alive).
    pub(crate) fn create(keeps_file: bool) -> Result<(Self, OwnedFd)> {
        let (first, file) = LedgerChunk::create(0)?;
        let kept = keeps_file.then(|| file.try_clone()).transpose();
        let ledger = Self {
            file: kept.map_err(|error| {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::MFILE);
                Error::os("duplicating a ledger's descriptor")(errno)
            })?,
            ..Self::default()
        };
        ledger.add(first);
        Ok((ledger, file))
    }

    /// Makes a chunk for an importer, and returns the descriptor to send; `None` if the importer
    /// has one already.
    pub(crate) fn extend(&self, chunk: usize) -> Result<Option<OwnedFd>> {
        let _making = self.making.lock();
        if self.chunks[chunk].get().is_some() {
            return Ok(None);
        }
        let (made, file) = LedgerChunk::create(chunk)?;
        self.add(made);
        Ok(Some(file))
    }

    /// Makes sure that a record's count is there. For a process's opens of its own exports.
    pub(crate) fn ensure(&self, record: u32) -> Result<()> {
        let Some(Place { chunk, .. }) = place_of(record) else {
            return Err(Error::Stale);
        };
        if self.chunks[chunk].get().is_none() {
            self.extend(chunk)?;
        }
        Ok(())
    }

    /// Adds a chunk, unless another thread was faster.
    pub(crate) fn add(&self, chunk: LedgerChunk) {
        let _ = self.chunks[chunk.chunk].set(chunk);
    }

    /// Returns the count of a record's opens, if its chunk is here.
    #[inline]
    pub(crate) fn count(&self, record: u32) -> Option<&AtomicU32> {
        let place = place_of(record)?;
        Some(self.chunks[place.chunk].get()?.count(place.index))
    }

    /// Returns whether the importer has a record open.
    pub(crate) fn is_open(&self, record: u32) -> bool {
        self.count(record).is_some_and(open_count::is_open)
    }

    /// Notes that the importer has hung up.
    pub(crate) fn mark_hung_up(&self) {
        self.has_hung_up.store(true, Ordering::SeqCst);
    }

    pub(crate) fn has_hung_up(&self) -> bool {
        self.has_hung_up.load(Ordering::SeqCst)
    }

    /// Shows, as long as this lives, that the importer does. `file` is that of the first chunk.
    pub(crate) fn lock_liveness(&self, file: &OwnedFd) -> Result<()> {
        let held = LivenessLocks::get()?.hold(file.as_fd(), LOCK_AT, LockKind::Shared);
        let held = held.map_err(Error::os("locking a ledger"))?;
        let _ = self.liveness.set(held);
        Ok(())
    }

    /// Returns whether the importer still lives, as its lock says; `false` if the file was not kept.
    pub(crate) fn is_owner_alive(&self) -> bool {
        let file = self.file.as_ref();
        // Where the kernel cannot say, the memory is kept.
        file.is_some_and(|file| lock::is_held(file.as_fd(), LOCK_AT).unwrap_or(true))
    }
}
