//! The ledger of one importing process for one context. It counts how often the process has each
//! record open, and lists its threads that sleep until an event of the context is signalled.
//!
//! The exporter creates the ledger and sends it, so that it receives no descriptor from an
//! importer. Both write it.

use super::{ArenaKey, CHUNKS, RecordPlace, capacity, file_len, place_of};
use crate::liveness::{LivenessLock, LivenessLocks};
use crate::platform::{AtomicU32, AtomicU64, Ordering};
use crate::records::BackendObject;
use crosshandle_events::open_count;
use crosshandle_os::lock::{self, LockKind};
use crosshandle_os::mapping::Mapping;
use crosshandle_os::memfd;
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};

/// Maximum number of replacements of a ledger chunk that an importer can get. An importer needs one
/// if its request timed out, or if it had no memory to map the chunk. The limit bounds the
/// exporter's addresses that a hostile importer can occupy, at most 3 MiB per chunk.
const MAX_LEDGER_REPEATS: usize = 16;

/// Number of bytes before the counts of the first chunk.
const HEADER_BYTES: usize = 4096;
/// Number of segments that an importer may be given before it is checked which of them exist.
const MIN_GIVEN: usize = 64;
/// The byte of the importer's liveness lock, beyond the counts.
const LOCK_AT: u64 = 1 << 40;

/// The header of the first chunk. All fields are atomic, and any bits are valid.
#[repr(C)]
struct Header {
    /// Bytes that commands of the process have copied from or to the context's memory.
    copied_bytes: AtomicU64,
    /// A word that is not 0 after the process has closed all its objects and is detaching.
    has_left: AtomicU64,
    _reserved: [AtomicU64; 6],
    sleepers: [SleeperEntry; SLEEPERS],
}

/// Maximum number of sleeping threads of one process that reports can show.
const SLEEPERS: usize = (HEADER_BYTES - 64) / size_of::<SleeperEntry>();

/// A thread that sleeps until a signal has finished.
#[repr(C)]
#[derive(Default)]
struct SleeperEntry {
    /// One more than the event's record, or 0 while the entry is free.
    record: AtomicU32,
    thread: AtomicU32,
    number: AtomicU64,
    /// Time at which the wait began, in nanoseconds of the monotonic clock.
    since: AtomicU64,
    _reserved: AtomicU64,
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

/// A sleeping thread according to a ledger. The importing process may have written any values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sleeper {
    /// The record of the event that the thread waits for.
    pub record: u32,
    /// The number of the signal that the thread waits for.
    pub number: u64,
    /// The thread's id in its own PID namespace.
    pub thread: u32,
    /// Time at which the wait began, in nanoseconds of the monotonic clock.
    pub since: u64,
}

/// A mapped chunk of a ledger.
pub struct LedgerChunk {
    mapping: Mapping,
    chunk: usize,
    /// The replacement of this chunk, which was sent because the importer did not get this one.
    instead: OnceLock<Box<LedgerChunk>>,
}

const fn counts_at(chunk: usize) -> usize {
    match chunk {
        0 => HEADER_BYTES,
        _ => 0,
    }
}

pub fn len_of(chunk: usize) -> usize {
    file_len(counts_at(chunk) + capacity(chunk) * size_of::<AtomicU32>())
}

impl LedgerChunk {
    /// Creates a chunk without opens, and its descriptor.
    fn create(chunk: usize) -> Result<(Self, OwnedFd)> {
        let len = len_of(chunk);
        let file = memfd::create("crosshandle-ledger", len as u64)
            .map_err(memfd::failed("creating a ledger", len))?;
        Ok((Self::map(&file, chunk)?, file))
    }

    /// Maps the chunk of a descriptor that an exporter sent.
    pub fn open(file: &OwnedFd, chunk: usize) -> Result<Self> {
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
        Ok(Self {
            mapping,
            chunk,
            instead: OnceLock::new(),
        })
    }

    /// Returns the latest replacement of this chunk, and how many chunks were sent before it.
    fn latest(&self) -> (&Self, usize) {
        let mut latest = (self, 0);
        while let Some(next) = latest.0.instead.get() {
            latest = (next, latest.1 + 1);
        }
        latest
    }

    /// Returns the header. Only for the first chunk.
    fn header(&self) -> &Header {
        assert!(self.chunk == 0);
        // SAFETY: the first chunk starts with a header, by `counts_at`. The rest is as for the
        // counts.
        unsafe { self.mapping.start().cast().as_ref() }
    }

    /// Returns the open count of a record of this chunk.
    #[inline]
    fn count(&self, place: RecordPlace) -> &AtomicU32 {
        debug_assert_eq!(place.chunk(), self.chunk);
        let offset = counts_at(self.chunk) + place.index() * size_of::<AtomicU32>();
        // SAFETY: a ledger keeps each chunk under its own number, so the place belongs to this
        // chunk and its index is below the capacity. The count is in bounds by `len_of`. The
        // mapping starts at a page, so counts are aligned. The file is sealed against shrinking,
        // and the mapping lives as long as `self`. All accesses, including those of other
        // processes, are atomic, and any bits are a valid count.
        unsafe { self.mapping.start().add(offset).cast().as_ref() }
    }
}

/// The segments that an importer was given, by their numbers.
#[derive(Default)]
struct Given {
    segments: BTreeMap<u32, Weak<dyn BackendObject>>,
    /// Number of segments above which those that no longer exist are removed.
    limit: usize,
}

/// A ledger, in the importer that it belongs to or in the exporter.
#[derive(Default)]
pub struct Ledger {
    chunks: [OnceLock<LedgerChunk>; CHUNKS],
    /// The lock is held while a chunk is made, so that only one thread makes it.
    making: Mutex<()>,
    /// Whether the importer has hung up, so that its counts no longer matter.
    has_hung_up: AtomicBool,
    /// In the exporter, the segments that the importer was given. Counts for other segments keep
    /// nothing open, because an importer with one handle can write all counts.
    given: Mutex<Given>,
    /// In the exporter, the event arenas that the importer was given.
    given_arenas: Mutex<BTreeSet<ArenaKey>>,
    /// In the exporter, the file of the first chunk. The importer's lock on this file shows that
    /// the importer is alive.
    file: Option<OwnedFd>,
    /// In the importer, its lock on the file of the first chunk.
    liveness: OnceLock<LivenessLock>,
}

impl Ledger {
    /// Creates an importer's ledger with its first chunk, and the descriptor to send. With
    /// `keeps_file`, [`is_owner_alive`](Self::is_owner_alive) can later check the importer.
    pub fn create(keeps_file: bool) -> Result<(Self, OwnedFd)> {
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

    /// Creates a chunk for an importer, and returns the descriptor to send. If an importer asks
    /// again, it did not get the earlier chunk, for example because its request timed out. From now
    /// on the new chunk is valid. Returns `None` if the importer has asked too often, or for the
    /// first chunk, which exists from the beginning.
    pub fn extend(&self, chunk: usize) -> Result<Option<OwnedFd>> {
        let _making = self.making.lock();
        let latest = self.chunks[chunk].get().map(LedgerChunk::latest);
        if chunk == 0 || latest.is_some_and(|(_, before)| before >= MAX_LEDGER_REPEATS) {
            return Ok(None);
        }
        let (made, file) = LedgerChunk::create(chunk)?;
        match latest {
            None => self.add(made),
            Some((latest, _)) => drop(latest.instead.set(Box::new(made))),
        }
        Ok(Some(file))
    }

    /// Creates the chunk of a record's count if necessary, for this process's opens of its own
    /// exports.
    pub fn ensure(&self, record: u32) -> Result<()> {
        let chunk = place_of(record).ok_or(Error::Stale)?.chunk();
        let _making = self.making.lock();
        if self.chunks[chunk].get().is_none() {
            self.add(LedgerChunk::create(chunk)?.0);
        }
        Ok(())
    }

    /// Adds a chunk, unless another thread was faster.
    pub fn add(&self, chunk: LedgerChunk) {
        let _ = self.chunks[chunk.chunk].set(chunk);
    }

    /// Returns the open count of a record, if its chunk exists here.
    #[inline]
    pub fn count(&self, record: u32) -> Option<&AtomicU32> {
        let place = place_of(record)?;
        Some(self.chunks[place.chunk()].get()?.count(place))
    }

    /// Records for reports that the calling thread sleeps until an event of the context is
    /// signalled. Returns the argument for [`leave`](Self::leave), or `None` if there is no room.
    pub fn enter(&self, sleeper: Sleeper) -> Option<usize> {
        let entries = &self.chunks[0].get()?.header().sleepers;
        // Threads start at different entries, so that the first one is usually free.
        let start = sleeper.thread as usize % SLEEPERS;
        let taken = sleeper.record.checked_add(1)?;
        let index = (start..SLEEPERS).chain(0..start).find(|index| {
            let record = &entries[*index].record;
            record.load(Ordering::Relaxed) == 0
                && record
                    .compare_exchange(0, taken, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
        })?;
        let entry = &entries[index];
        entry.thread.store(sleeper.thread, Ordering::Relaxed);
        entry.number.store(sleeper.number, Ordering::Relaxed);
        entry.since.store(sleeper.since, Ordering::Release);
        Some(index)
    }

    /// Removes the entry that [`enter`](Self::enter) made.
    pub fn leave(&self, index: usize) {
        let first = self.chunks[0].get();
        if let Some(entry) = first.and_then(|first| first.header().sleepers.get(index)) {
            entry.since.store(0, Ordering::Relaxed);
            entry.record.store(0, Ordering::Release);
        }
    }

    /// Returns the sleeping threads that have entries.
    pub fn sleepers(&self) -> Vec<Sleeper> {
        let Some(first) = self.chunks[0].get() else {
            return Vec::new();
        };
        let entries = first.header().sleepers.iter();
        entries
            .filter_map(|entry| {
                let sleeper = Sleeper {
                    record: entry.record.load(Ordering::Acquire).checked_sub(1)?,
                    since: entry.since.load(Ordering::Acquire),
                    number: entry.number.load(Ordering::Relaxed),
                    thread: entry.thread.load(Ordering::Relaxed),
                };
                // 0 means that the entry is still being written.
                (sleeper.since != 0).then_some(sleeper)
            })
            .collect()
    }

    /// Counts bytes that a command of the process copies from or to the context's memory.
    pub fn add_copied(&self, bytes: u64) {
        if let Some(first) = self.chunks[0].get() {
            let copied = &first.header().copied_bytes;
            copied.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the number of bytes that commands of the process have copied.
    pub fn copied(&self) -> u64 {
        let first = self.chunks[0].get();
        first.map_or(0, |first| {
            first.header().copied_bytes.load(Ordering::Relaxed)
        })
    }

    /// Records for the exporter that this process detaches and has nothing open.
    pub fn leave_all(&self) {
        if let Some(first) = self.chunks[0].get() {
            first.header().has_left.store(1, Ordering::Release);
        }
    }

    /// Returns whether the importer has detached, as opposed to ended.
    pub fn has_left(&self) -> bool {
        let first = self.chunks[0].get();
        first.is_some_and(|first| first.header().has_left.load(Ordering::Acquire) != 0)
    }

    /// Returns how often the importer has a record open.
    pub fn times_open(&self, record: u32) -> u32 {
        let count = self.count(record);
        count.map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Records that the importer is given a segment, whose memory is `object`. Must be called
    /// before the descriptor is sent.
    ///
    /// `retired` returns the segments of freed records that processes have open, or `None` if they
    /// are no longer known. Numbers of other segments are forgotten after their memory is gone.
    pub fn note_given(
        &self,
        segment: u32,
        object: &Arc<dyn BackendObject>,
        retired: impl FnOnce() -> Option<BTreeSet<u32>>,
    ) {
        let mut given = self.given.lock();
        given.segments.insert(segment, Arc::downgrade(object));
        if given.segments.len() > given.limit.max(MIN_GIVEN)
            && let Some(retired) = retired()
        {
            given
                .segments
                .retain(|segment, object| object.strong_count() > 0 || retired.contains(segment));
            // The cost of a scan is spread over as many segments as it has kept.
            given.limit = 2 * given.segments.len();
        }
    }

    /// Returns the segments that the importer was given and that are remembered.
    #[cfg(test)]
    pub fn given(&self) -> Vec<u32> {
        self.given.lock().segments.keys().copied().collect()
    }

    /// Records that the importer is given an event arena. Must be called before the descriptor is
    /// sent.
    pub fn note_given_arena(&self, arena: ArenaKey) {
        self.given_arenas.lock().insert(arena);
    }

    /// Returns whether the importer has an event open that lies in this arena.
    pub fn has_event_open(&self, record: u32, arena: ArenaKey) -> bool {
        self.is_open(record) && self.given_arenas.lock().contains(&arena)
    }

    /// Returns whether the importer has a record open. `segment` is the segment of memory, or
    /// `None` for an event.
    pub fn has_open(&self, record: u32, segment: Option<u32>) -> bool {
        let is_given = |segment: u32| self.given.lock().segments.contains_key(&segment);
        self.is_open(record) && segment.is_none_or(is_given)
    }

    /// Returns whether the importer has a record open.
    pub fn is_open(&self, record: u32) -> bool {
        let Some(place) = place_of(record) else {
            return false;
        };
        let chunk = self.chunks[place.chunk()].get();
        chunk.is_some_and(|chunk| open_count::is_open(chunk.latest().0.count(place)))
    }

    /// Records that the importer has hung up.
    pub fn mark_hung_up(&self) {
        self.has_hung_up.store(true, Ordering::SeqCst);
    }

    pub fn has_hung_up(&self) -> bool {
        self.has_hung_up.load(Ordering::SeqCst)
    }

    /// Shows that the importer is alive while this ledger exists. `file` is the file of the first
    /// chunk.
    pub fn lock_liveness(&self, file: &OwnedFd) -> Result<()> {
        let held = LivenessLocks::get()?.hold(file.as_fd(), LOCK_AT, LockKind::Shared);
        let held = held.map_err(Error::os("locking a ledger"))?;
        let _ = self.liveness.set(held);
        Ok(())
    }

    /// Returns whether the importer is alive according to its lock. Returns `true` if the file was
    /// not kept.
    pub fn is_owner_alive(&self) -> bool {
        let file = self.file.as_ref();
        // If the kernel cannot tell, the memory is kept, and the connection shows the importer's
        // death.
        file.is_none_or(|file| lock::is_held(file.as_fd(), LOCK_AT).unwrap_or(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleepers_are_seen_until_they_leave() {
        let (ledger, file) = Ledger::create(false).expect("a ledger");
        let view = Ledger::default();
        view.add(LedgerChunk::open(&file, 0).expect("the same"));
        let sleeper = |thread| Sleeper {
            record: 3,
            number: 70,
            thread,
            since: 5,
        };
        let all: Vec<_> = (0..SLEEPERS as u32)
            .map(|thread| ledger.enter(sleeper(thread)).expect("room"))
            .collect();
        assert_eq!(ledger.enter(sleeper(9_999)), None, "it is full");
        let mut seen = view.sleepers();
        seen.sort_by_key(|sleeper| sleeper.thread);
        assert_eq!(seen.len(), SLEEPERS);
        assert_eq!(seen[17], sleeper(17));
        all.into_iter().for_each(|index| ledger.leave(index));
        assert_eq!(view.sleepers(), []);
        ledger.add_copied(40);
        assert_eq!(view.copied(), 40);
    }

    #[test]
    fn an_importer_that_did_not_get_a_chunk_gets_another_which_counts() {
        let (ledger, _) = Ledger::create(false).expect("a ledger");
        let record = 5_000;
        let chunk = place_of(record).expect("a place").chunk();
        for _ in 0..=MAX_LEDGER_REPEATS {
            let file = ledger.extend(chunk).expect("made").expect("another");
            assert!(!ledger.is_open(record));
            let importer = Ledger::default();
            importer.add(LedgerChunk::open(&file, chunk).expect("the same"));
            let count = importer.count(record).expect("there");
            count.fetch_add(1, Ordering::SeqCst);
            assert!(ledger.is_open(record));
        }
        assert!(ledger.extend(chunk).expect("no error").is_none());
        assert!(ledger.is_open(record));
    }
}
