//! Event arenas: the files in which the slots of events lie.
//!
//! A context has an arena for each chunk of its records; the slot of an event is the one of its
//! record. An event can also have an arena to itself. Whoever is given a handle of an event gets
//! the event's arena, for reading and writing, and with it all events there.

mod peer_watch;
mod pins;

pub(crate) use super::chunks::ArenaKey;
pub(crate) use peer_watch::PeerWatches;
pub(crate) use pins::{Pin, Pinner};

use super::chunks::{CHUNKS, capacity, file_len, first_of, place_of};
use super::liveness::{LivenessLock, LivenessLocks};
use super::record::Record;
use crate::error::{Error, Result};
use crate::event_protocol::{Liveness, Owner, Slot};
use crate::os::futex::{Doorbell, doorbell_bytes};
use crate::os::is_planted;
use crate::os::lock::{self, LockKind};
use crate::os::mapping::Mapping;
use crate::os::memfd;
use crate::platform::{AtomicU64, Ordering};
use crate::sync::{HashMap, Mutex};
use crate::types::Access;
use pins::Pins;
use rustix::io::Errno;
use std::mem::size_of;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock, Weak};

/// The byte of the first liveness lock, far behind the last byte of the file.
const LOCKS_AT: u64 = 1 << 40;

// Three pairs of cache lines; the first line has all that a signal touches.
const _: () = assert!(size_of::<Slot>() == 384);

/// A mapped arena: the exporter's own, or an importer's view of it.
pub(crate) struct EventArena {
    /// Rung when a word of the arena is woken. Dropped before the mapping.
    _doorbell: Doorbell,
    pins: Pins,
    /// Shared with the pins, which keep it too.
    mapping: Arc<Mapping>,
    slots: usize,
    /// The descriptor to send to importers, in the process that made the arena.
    file: Option<Arc<OwnedFd>>,
    /// A bit for each slot of an event that this process shares with others, or opened. Private to
    /// this process: what a peer's words say must not decide how much there is to do.
    shared: Box<[AtomicU64]>,
}

/// Returns the length of the file of an arena: so many slots, then the doorbell.
pub(crate) fn arena_len(slots: usize) -> usize {
    file_len(slots * size_of::<Slot>() + doorbell_bytes(slots))
}

/// The place of an event's slot, for an object that keeps the arena.
pub(super) struct SlotPlace(NonNull<Slot>);

// SAFETY: it stands for a shared reference to a slot, whose fields are all atomic.
unsafe impl Send for SlotPlace {}
// SAFETY: as above.
unsafe impl Sync for SlotPlace {}

impl SlotPlace {
    /// # Safety
    /// The arena that `slot` is in is kept for at least as long as the result.
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
    /// Makes an arena of so many slots.
    pub(super) fn create(slots: usize) -> Result<Self> {
        let len = arena_len(slots);
        let file = memfd::create("crosshandle-events", len as u64)
            .map_err(memfd::failed("creating an event arena", len))?;
        let mut arena = Self::map(&file, slots)?;
        arena.file = Some(Arc::new(file));
        Ok(arena)
    }

    /// Maps the arena behind a descriptor that an exporter sent.
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
        // SAFETY: the arena has room for the doorbell behind its slots, is mapped for reading and writing,
        // and keeps the mapping for longer than the doorbell. All processes access it atomically.
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

    /// Returns a slot. The index is below the number of slots.
    #[inline]
    pub(super) fn slot(&self, index: usize) -> &Slot {
        assert!(index < self.slots);
        // SAFETY: in bounds by the assertion and the length of the mapping, which starts at a page.
        // Its file is sealed against shrinking, and it lives as long as `self`. All processes access
        // slots atomically, and any bits are valid in them.
        unsafe { self.mapping.start().cast::<Slot>().add(index).as_ref() }
    }

    /// Lets the devices of `pinner` access one of the slots, until the arena is dropped.
    pub(super) fn pin(&self, slot: &Slot, pinner: &dyn Pinner) -> Result<()> {
        let (start, len) = (self.mapping.start(), self.mapping.len());
        let offset = ptr::from_ref(slot).addr() - start.addr().get();
        assert!(offset < len, "a slot of this arena");
        // SAFETY: an arena is mapped for reading and writing, from a page on, and the slot is inside.
        unsafe { self.pins.pin(pinner, &self.mapping, offset) }
    }

    /// Notes that other processes may signal the event in a slot, so that
    /// [`fail_orphans`](Self::fail_orphans) looks at it.
    #[inline]
    pub(super) fn mark_shared(&self, index: usize) {
        let (word, bit) = (&self.shared[index / 64], 1 << (index % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// Ends [`mark_shared`](Self::mark_shared): the slot is free. The exporter only.
    pub(super) fn unmark_shared(&self, index: usize) {
        let (word, bit) = (&self.shared[index / 64], 1 << (index % 64));
        if word.load(Ordering::Relaxed) & bit != 0 {
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    /// Fails the unfinished signals of dead owners in the events that this process shares with
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

    /// Returns the descriptor to send to importers. The exporter only.
    pub(super) fn file(&self) -> Option<Arc<OwnedFd>> {
        self.file.clone()
    }
}

/// A file in which the processes that signal the context's events show by locks that they live.
///
/// It is one file for all arenas, and given to those alone who are given an arena. Everybody who has
/// it can lock any byte: a process that does can seem alive when it is dead, or make another one's
/// look for locks slow.
struct LivenessFile {
    file: Arc<OwnedFd>,
    /// `None` if a hostile process has locked this one's byte for itself alone: to others this process
    /// seems to live as long as that one. Hang-ups still tell the truth.
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

    /// Declares this process to be `owner`, until it ends or drops this.
    fn lock(file: OwnedFd, owner: Owner) -> Result<Self> {
        // Shared, so that the locks of other processes of the same kind don't keep this one from it.
        let locks = LivenessLocks::get()?;
        let own = match locks.hold(file.as_fd(), lock_of(owner), LockKind::Shared) {
            Ok(held) => Some(held),
            Err(Errno::EXIST) => {
                return Err(Error::Protocol("its file of locks is another one's"));
            }
            Err(Errno::AGAIN | Errno::ACCESS) if !is_planted("finding-13") => None,
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

/// The event arenas of a context: the exporter's own, or an importer's views of those that it was
/// given.
#[derive(Default)]
pub(crate) struct EventArenas {
    /// The context's own, by chunk.
    chunks: [OnceLock<EventArena>; CHUNKS],
    /// Arenas of one event each.
    isolated: Mutex<HashMap<Record, Weak<EventArena>>>,
    liveness: OnceLock<LivenessFile>,
    /// Held while a file is made, so that it is made once.
    making: Mutex<()>,
}

impl EventArenas {
    /// Shows from now on that this process, the exporter, lives.
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

    /// Shows in a file that the exporter sent, from now on, that this process lives as `owner`. Only
    /// the first call counts.
    pub(super) fn show_liveness_in(&self, file: OwnedFd, owner: Owner) -> Result<()> {
        let (_, is_sealed) =
            memfd::check(&file).map_err(Error::os("looking at a file of locks"))?;
        if !is_sealed {
            return Err(Error::Protocol("its file of locks is none"));
        }
        let _making = self.making.lock();
        if self.liveness.get().is_none() {
            let _ = self.liveness.set(LivenessFile::lock(file, owner)?);
        }
        Ok(())
    }

    /// Returns the descriptor of the file of locks, to be sent to importers. The exporter only.
    pub(super) fn liveness_file(&self) -> Option<Arc<OwnedFd>> {
        Some(Arc::clone(&self.liveness.get()?.file))
    }

    /// Returns whether another process, or another copy of this library in this one, is `owner`. One
    /// system call. Where the liveness locks are not separate, this process's own counts as free.
    pub(super) fn is_alive(&self, owner: Owner) -> bool {
        let Some(liveness) = self.liveness.get() else {
            // No other process has an event of this context.
            return false;
        };
        // Where the kernel cannot say, hang-ups still tell.
        lock::is_held(liveness.file.as_fd(), lock_of(owner)).unwrap_or(true)
    }

    /// Returns the arena of a record's chunk, if it is here.
    #[inline]
    pub(super) fn common(&self, record: u32) -> Option<(&EventArena, usize)> {
        let place = place_of(record)?;
        Some((self.chunks[place.chunk()].get()?, place.index()))
    }

    /// Returns the arena of a record's chunk, made now if there is none. The exporter only.
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

    /// Returns the arena of an event that has one to itself, if it is here.
    pub(super) fn isolated(&self, event: Record) -> Option<Arc<EventArena>> {
        self.isolated.lock().get(&event)?.upgrade()
    }

    /// Remembers an arena of one event.
    pub(super) fn add_isolated(&self, event: Record, arena: &Arc<EventArena>) {
        let mut isolated = self.isolated.lock();
        // Only before the table would grow, so that the cost of looking spreads.
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

    /// Calls `f` with the slot of an event whose arena is here.
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

    /// Returns the arenas of one event each, with their records. Without the lock on them, since the
    /// caller may have the last reference to one.
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
