//! Event arenas are the files that contain the slots of events.
//!
//! A context has one arena for each chunk of its records, and an event uses the slot of its record.
//! An event can also have an arena to itself. A process that gets a handle of an event gets the
//! event's arena for reading and writing, and thereby all events in it.

mod peer_watch;
mod pins;

pub(crate) use super::chunks::ArenaKey;
pub(crate) use peer_watch::PeerWatches;
pub use pins::{BackendPinner, Pin};

use super::chunks::{CHUNKS, capacity, file_len, first_of, place_of};
use super::liveness::{LivenessLock, LivenessLocks};
use super::record::Record;
use crate::platform::{AtomicU64, Ordering, Slot};
use crosshandle_events::{Liveness, Owner};
use crosshandle_os::futex::{Doorbell, doorbell_bytes};
use crosshandle_os::lock::{self, LockKind};
use crosshandle_os::mapping::Mapping;
use crosshandle_os::memfd;
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::{HashMap, Mutex};
use pins::Pins;
use rustix::io::Errno;
use std::mem::size_of;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock, Weak};

/// The byte of the first liveness lock, far beyond the end of the file.
const LOCKS_AT: u64 = 1 << 40;

// Three pairs of cache lines. The first line contains everything that a signal touches.
const _: () = assert!(size_of::<Slot>() == 384);

/// A mapped arena, in the exporter or in an importer.
pub struct EventArena {
    /// Rung when a word of the arena is woken. Dropped before the mapping.
    _doorbell: Doorbell,
    pins: Pins,
    /// Shared with the pins, which keep it too.
    mapping: Arc<Mapping>,
    slots: usize,
    /// The descriptor to send to importers, in the process that made the arena.
    file: Option<Arc<OwnedFd>>,
    /// One bit for each slot whose event this process shares or has opened. The bits are private to
    /// this process, because a peer's words must not decide how much work this process does.
    shared: Box<[AtomicU64]>,
}

/// Returns the length of an arena's file in bytes, for this many slots and the doorbell.
pub fn arena_len(slots: usize) -> usize {
    file_len(slots * size_of::<Slot>() + doorbell_bytes(slots))
}

/// The address of an event's slot, for an object that keeps the arena.
pub(super) struct SlotPlace(NonNull<Slot>);

// SAFETY: the place stands for a shared reference to a slot, whose fields are all atomic.
unsafe impl Send for SlotPlace {}
// SAFETY: the place stands for a shared reference to a slot, whose fields are all atomic.
unsafe impl Sync for SlotPlace {}

impl SlotPlace {
    /// # Safety
    /// The arena of `slot` must be kept for at least as long as the result.
    #[inline]
    pub(super) unsafe fn new(slot: &Slot) -> Self {
        Self(NonNull::from(slot))
    }

    #[inline]
    pub(super) fn get(&self) -> &Slot {
        // SAFETY: the slot lives as long as its arena, which the caller of `new` keeps.
        unsafe { self.0.as_ref() }
    }
}

impl EventArena {
    /// Creates an arena of this many slots.
    pub(super) fn create(slots: usize) -> Result<Self> {
        let len = arena_len(slots);
        let file = memfd::create("crosshandle-events", len as u64)
            .map_err(memfd::failed("creating an event arena", len))?;
        let mut arena = Self::map(&file, slots)?;
        arena.file = Some(Arc::new(file));
        Ok(arena)
    }

    /// Maps the arena of a descriptor that an exporter sent.
    pub(super) fn open(file: &OwnedFd, slots: usize) -> Result<Self> {
        let (len, sealed) = memfd::check(file).map_err(Error::os("looking at an event arena"))?;
        if len != arena_len(slots) as u64 || !sealed {
            return Err(Error::Protocol(
                "its event arena has another size or no seal",
            ));
        }
        Self::map(file, slots)
    }

    fn map(file: &OwnedFd, slots: usize) -> Result<Self> {
        let len = arena_len(slots);
        let mapping = Mapping::shared(file, len, 1, Access::ReadWrite)
            .map_err(Error::memory("mapping an event arena", len))?;
        mapping.exclude_from_dumps();
        // SAFETY: the arena has room for the doorbell after its slots and is mapped for reading and
        // writing. The mapping outlives the doorbell. All processes access it atomically.
        let doorbell = unsafe { Doorbell::new(mapping.start(), slots * size_of::<Slot>(), slots) };
        Ok(Self {
            _doorbell: doorbell,
            pins: Pins::default(),
            mapping: Arc::new(mapping),
            slots,
            file: None,
            shared: std::iter::repeat_with(AtomicU64::default)
                .take(slots.div_ceil(64))
                .collect(),
        })
    }

    /// Returns a slot. The index must be below the number of slots.
    #[inline]
    pub(super) fn slot(&self, index: usize) -> &Slot {
        assert!(index < self.slots);
        // SAFETY: the slot is in bounds by the assertion and the length of the mapping, which
        // starts at a page. The file is sealed against shrinking, and the mapping lives as long as
        // `self`. All processes access slots atomically, and any bits are valid in them.
        unsafe { self.mapping.start().cast::<Slot>().add(index).as_ref() }
    }

    /// Gives the devices of `pinner` access to one slot, until the arena is dropped.
    pub(super) fn pin(&self, slot: &Slot, pinner: &dyn BackendPinner) -> Result<()> {
        let (start, len) = (self.mapping.start(), self.mapping.len());
        let offset = ptr::from_ref(slot).addr() - start.addr().get();
        assert!(offset < len, "a slot of this arena");
        // SAFETY: an arena is mapped for reading and writing and starts at a page, and the slot is
        // inside.
        unsafe { self.pins.pin(pinner, &self.mapping, offset) }
    }

    /// Records that other processes may signal the event in a slot, so that
    /// [`fail_orphans`](Self::fail_orphans) checks it.
    #[inline]
    pub(super) fn mark_shared(&self, index: usize) {
        let (word, bit) = (&self.shared[index / 64], 1 << (index % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// Reverts [`mark_shared`](Self::mark_shared), because the slot is free. Only for the exporter.
    pub(super) fn unmark_shared(&self, index: usize) {
        let (word, bit) = (&self.shared[index / 64], 1 << (index % 64));
        if word.load(Ordering::Relaxed) & bit != 0 {
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    /// Fails the unfinished signals of dead owners, in all events that this process shares with
    /// others.
    pub(super) fn fail_orphans(&self, liveness: &dyn Liveness) {
        self.for_each_shared(|_, slot| slot.fail_orphans(liveness));
    }

    /// Calls `f` with the index and the slot of every event that this process shares with others.
    fn for_each_shared(&self, mut f: impl FnMut(usize, &Slot)) {
        for (index, word) in self.shared.iter().enumerate() {
            let mut bits = word.load(Ordering::Acquire);
            while bits != 0 {
                let index = 64 * index + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                f(index, self.slot(index));
            }
        }
    }

    /// Returns the descriptor to send to importers. Only for the exporter.
    pub(super) fn file(&self) -> Option<Arc<OwnedFd>> {
        self.file.clone()
    }
}

/// A file with locks by which the processes that signal the context's events show that they are
/// alive.
///
/// There is one file for all arenas, and only processes that get an arena get it. Every process
/// that has the file can lock any byte. It can thereby appear alive after its death, or make the
/// lock queries of other processes slow.
struct LivenessFile {
    file: Arc<OwnedFd>,
    /// `None` if a hostile process holds an exclusive lock on this process's byte. Other processes
    /// then consider this process alive while that process lives, but a hang-up still shows its
    /// death.
    _own: Option<LivenessLock>,
}

impl LivenessFile {
    fn create() -> Result<Self> {
        let file = memfd::create("crosshandle-liveness", 0);
        Self::lock(
            file.map_err(Error::os("creating a file of locks"))?,
            Owner::EXPORTER,
        )
    }

    /// Shows that this process is alive as `owner`, until it ends or drops this.
    fn lock(file: OwnedFd, owner: Owner) -> Result<Self> {
        // The lock is shared, so that similar locks of other processes do not prevent it.
        let locks = LivenessLocks::get()?;
        let own = match locks.hold(file.as_fd(), lock_of(owner), LockKind::Shared) {
            Ok(held) => Some(held),
            Err(Errno::EXIST) => {
                return Err(Error::Protocol(
                    "its file of locks belongs to another exporter",
                ));
            }
            Err(Errno::AGAIN | Errno::ACCESS) => None,
            Err(errno) => return Err(Error::os("locking a place in a file of locks")(errno)),
        };
        Ok(Self {
            file: Arc::new(file),
            _own: own,
        })
    }
}

/// Returns the byte that `owner` locks.
fn lock_of(owner: Owner) -> u64 {
    LOCKS_AT + u64::from(owner.get())
}

/// The event arenas of a context, in the exporter or in an importer.
#[derive(Default)]
pub(crate) struct EventArenas {
    /// The arenas of the context, by chunk.
    chunks: [OnceLock<EventArena>; CHUNKS],
    /// Arenas of a single event.
    isolated: Mutex<HashMap<Record, Weak<EventArena>>>,
    liveness: OnceLock<LivenessFile>,
    /// The lock is held while a file is created, so that only one thread creates it.
    making: Mutex<()>,
}

impl EventArenas {
    /// Takes the liveness lock that shows that this process, the exporter, is alive.
    #[inline]
    pub(super) fn show_liveness(&self) -> Result<()> {
        match self.liveness.get() {
            Some(_) => Ok(()),
            None => self.make_liveness_file(),
        }
    }

    #[cold]
    fn make_liveness_file(&self) -> Result<()> {
        let _making = self.making.lock();
        if self.liveness.get().is_none() {
            let _ = self.liveness.set(LivenessFile::create()?);
        }
        Ok(())
    }

    /// Takes a liveness lock in a file that the exporter sent, which shows that this process is
    /// alive as `owner`. Only the first call has an effect.
    pub(super) fn show_liveness_in(&self, file: OwnedFd, owner: Owner) -> Result<()> {
        let (_, is_sealed) =
            memfd::check(&file).map_err(Error::os("looking at a file of locks"))?;
        if !is_sealed {
            return Err(Error::Protocol("its file of locks is invalid"));
        }
        let _making = self.making.lock();
        if self.liveness.get().is_none() {
            let _ = self.liveness.set(LivenessFile::lock(file, owner)?);
        }
        Ok(())
    }

    /// Returns the descriptor of the file of locks, to send to importers. Only for the exporter.
    pub(super) fn liveness_file(&self) -> Option<Arc<OwnedFd>> {
        Some(Arc::clone(&self.liveness.get()?.file))
    }

    /// Returns whether another process, or another copy of this library in this process, is alive
    /// as `owner`. Makes one system call. If the liveness locks are not separate, this process's
    /// own lock does not count.
    pub(super) fn is_alive(&self, owner: Owner) -> bool {
        let Some(liveness) = self.liveness.get() else {
            // No other process has an event of this context.
            return false;
        };
        // If the kernel cannot tell, a hang-up still does.
        lock::is_held(liveness.file.as_fd(), lock_of(owner)).unwrap_or(true)
    }

    /// Returns the arena of a record's chunk and the record's index in it, if this process has the
    /// arena.
    #[inline]
    pub(super) fn common(&self, record: u32) -> Option<(&EventArena, usize)> {
        let place = place_of(record)?;
        Some((self.chunks[place.chunk()].get()?, place.index()))
    }

    /// Returns the arena of a record's chunk, and creates it if necessary. Only for the exporter.
    pub(super) fn common_or_new(&self, record: u32) -> Result<(&EventArena, usize)> {
        if let Some(found) = self.common(record) {
            return Ok(found);
        }
        let chunk = place_of(record).ok_or(Error::Stale)?.chunk();
        let _making = self.making.lock();
        if self.chunks[chunk].get().is_none() {
            self.add_common(record, EventArena::create(capacity(chunk))?);
        }
        self.common(record).ok_or(Error::Stale)
    }

    /// Adds the arena of a record's chunk, unless another thread was faster.
    pub(super) fn add_common(&self, record: u32, arena: EventArena) {
        if let Some(place) = place_of(record) {
            let _ = self.chunks[place.chunk()].set(arena);
        }
    }

    /// Returns the arena of an event that shares its arena with no other event, if this process has
    /// the arena.
    pub(super) fn isolated(&self, event: Record) -> Option<Arc<EventArena>> {
        self.isolated.lock().get(&event)?.upgrade()
    }

    /// Records the arena of a single event.
    pub(super) fn add_isolated(&self, event: Record, arena: &Arc<EventArena>) {
        let mut isolated = self.isolated.lock();
        // Ended entries are removed only before the table would grow, which spreads the cost.
        if isolated.len() == isolated.capacity() {
            isolated.retain(|_, arena| arena.strong_count() > 0);
        }
        isolated.insert(event, Arc::downgrade(arena));
    }

    /// Calls `f` with the record and the slot of every event that this process shares with others.
    pub(super) fn for_each_shared(&self, mut f: impl FnMut(u32, ArenaKey, &Slot)) {
        for (chunk, arena) in self.chunks.iter().enumerate() {
            if let Some(arena) = arena.get() {
                let first = first_of(chunk);
                let key = ArenaKey::common(first);
                arena.for_each_shared(|index, slot| f(first + index as u32, key, slot));
            }
        }
        for (record, arena) in self.live_isolated() {
            let key = ArenaKey::isolated(record);
            arena.for_each_shared(|_, slot| f(record, key, slot));
        }
    }

    /// Calls `f` with the slot of an event, if this process has the event's arena.
    pub(super) fn with_slot(&self, record: u32, f: impl FnOnce(ArenaKey, &Slot)) {
        let isolated = self.isolated.lock();
        let mut found = isolated.iter().filter(|(event, _)| event.index == record);
        let found = found.find_map(|(_, arena)| arena.upgrade());
        drop(isolated);
        if let Some(arena) = found {
            f(ArenaKey::isolated(record), arena.slot(0));
        } else if let Some((arena, index)) = self.common(record) {
            f(ArenaKey::common(record), arena.slot(index));
        }
    }

    /// Returns the arenas of single events, with their records. The lock is released before the
    /// result is used, because the caller may hold the last reference to an arena.
    fn live_isolated(&self) -> Vec<(u32, Arc<EventArena>)> {
        let isolated = self.isolated.lock();
        let live = isolated.iter();
        live.filter_map(|(event, arena)| Some((event.index, arena.upgrade()?)))
            .collect()
    }

    /// Calls `f` with every arena.
    pub(super) fn for_each(&self, mut f: impl FnMut(&EventArena)) {
        self.chunks
            .iter()
            .filter_map(OnceLock::get)
            .for_each(&mut f);
        for (_, arena) in self.live_isolated() {
            f(&arena);
        }
    }
}
