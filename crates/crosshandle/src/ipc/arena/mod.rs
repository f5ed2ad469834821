//! The arena: one memfd that a context shares with every importer.

mod pins;

pub(crate) use pins::{Pin, Pinner};

use super::liveness::{LivenessLock, LivenessLocks};
use super::open_count;
use crate::error::{Error, Result};
use crate::event_protocol::{Liveness, Owner, Slot};
use crate::os::lock::{self, LockKind};
use crate::os::mapping::Mapping;
use crate::os::memfd;
use crate::platform::{AtomicU32, AtomicU64, Ordering};
use crate::sync::Mutex;
use crate::types::Access;
use pins::Pins;
use rustix::io::Errno;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

/// The number of objects that one context can share at a time.
pub(crate) const MAX_RECORDS: u32 = 1 << 20;

const MAGIC: u64 = u64::from_le_bytes(*b"XHARENA1");
/// Bytes of an arena. Most of them are never touched and take no memory.
const LEN: usize = size_of::<Contents>();
/// The offset of the slots.
const SLOTS_AT: usize = offset_of!(Contents, slots);
/// The byte of the first liveness lock, far behind the last byte of the file.
const LOCKS_AT: u64 = 1 << 40;

// Parts of the slots are pinned in pages.
const _: () = assert!(SLOTS_AT.is_multiple_of(4096));
// Three pairs of cache lines; the first line has all that a signal touches.
const _: () = assert!(size_of::<Slot>() == 384);

/// The layout of an arena. All of it is atomic, and any bits are valid in it.
#[repr(C)]
struct Contents {
    header: Header,
    _rest_of_page: [AtomicU8; 4096 - size_of::<Header>()],
    states: [RecordState; MAX_RECORDS as usize],
    slots: [Slot; MAX_RECORDS as usize],
}

#[repr(C)]
struct Header {
    magic: AtomicU64,
    /// One more than the greatest record that was ever used.
    used: AtomicU32,
}

#[repr(C)]
struct RecordState {
    /// Odd while the record is in use.
    generation: AtomicU32,
    /// 1 while the record is an event's.
    is_event: AtomicU32,
}

/// A mapped arena: the exporter's own, or an importer's view of it.
pub(crate) struct Arena {
    pins: Pins,
    /// Shared with the pins, which keep it too.
    mapping: Arc<Mapping>,
    file: Arc<OwnedFd>,
    /// Shows that this process lives, once others rely on it.
    liveness: Mutex<Option<LivenessLock>>,
}

/// The place of an event's slot, for an object that keeps the arena.
pub(super) struct SlotPlace(NonNull<Slot>);

// SAFETY: it stands for a shared reference to a slot, whose fields are all atomic.
unsafe impl Send for SlotPlace {}
// SAFETY: as above.
unsafe impl Sync for SlotPlace {}

impl SlotPlace {
    /// # Safety
    /// The arena is kept for at least as long as the result.
    #[inline]
    pub(super) unsafe fn new(arena: &Arena, record: u32) -> Self {
        Self(NonNull::from(arena.slot(record)))
    }

    #[inline]
    pub(super) fn get(&self) -> &Slot {
        // SAFETY: the slot lives as long as its arena, which the caller of `new` keeps.
        unsafe { self.0.as_ref() }
    }
}

impl Arena {
    /// Makes an arena without records.
    pub(crate) fn create() -> Result<Self> {
        let file = memfd::create("crosshandle-arena", LEN as u64)
            .map_err(Error::os("creating an arena"))?;
        let arena = Self::map(file)?;
        arena.header().magic.store(MAGIC, Ordering::Release);
        Ok(arena)
    }

    /// Maps the arena behind a descriptor that an exporter sent.
    pub(super) fn open(file: OwnedFd) -> Result<Self> {
        let (len, sealed) = memfd::check(&file).map_err(Error::os("looking at an arena"))?;
        if len != LEN as u64 || !sealed {
            return Err(Error::Protocol("its arena has another size or no seal"));
        }
        let arena = Self::map(file)?;
        if arena.header().magic.load(Ordering::Acquire) != MAGIC {
            return Err(Error::Protocol("its arena has another layout"));
        }
        Ok(arena)
    }

    fn map(file: OwnedFd) -> Result<Self> {
        let mapping = Mapping::shared(&file, LEN, 1, Access::ReadWrite)
            .map_err(Error::memory("mapping an arena", LEN))?;
        mapping.exclude_from_dumps();
        Ok(Self {
            pins: Pins::default(),
            mapping: Arc::new(mapping),
            file: Arc::new(file),
            liveness: Mutex::default(),
        })
    }

    fn contents(&self) -> &Contents {
        // SAFETY: the mapping starts at a page and has LEN bytes, those of the contents. Its file is
        // sealed against shrinking, and it lives as long as `self`. All processes access it
        // atomically, and any bits are valid.
        unsafe { self.mapping.start().cast().as_ref() }
    }

    fn header(&self) -> &Header {
        &self.contents().header
    }

    fn state(&self, record: u32) -> &RecordState {
        &self.contents().states[record as usize]
    }

    /// Returns the generation of a record below [`MAX_RECORDS`].
    #[inline]
    pub(super) fn generation(&self, record: u32) -> &AtomicU32 {
        &self.state(record).generation
    }

    /// Returns the event slot of a record below [`MAX_RECORDS`].
    #[inline]
    pub(crate) fn slot(&self, record: u32) -> &Slot {
        &self.contents().slots[record as usize]
    }

    /// Lets the devices of `pinner` access one of the slots, until the arena is dropped.
    pub(super) fn pin(&self, slot: &Slot, pinner: &dyn Pinner) -> Result<()> {
        let (start, len) = (self.mapping.start(), self.mapping.len());
        let offset = ptr::from_ref(slot).addr() - start.addr().get();
        assert!((SLOTS_AT..len).contains(&offset), "a slot of this arena");
        let offset = offset - SLOTS_AT;
        // SAFETY: an arena is mapped for reading and writing; the slots start at a page, by an assertion
        // above, and the slot is inside.
        unsafe { self.pins.pin(pinner, &self.mapping, SLOTS_AT, offset) }
    }

    /// Puts a record to use, for an event or for memory, and returns its generation. The exporter
    /// only.
    pub(super) fn start_use(&self, record: u32, is_event: bool) -> u32 {
        let state = self.state(record);
        if is_event {
            self.slot(record).reset();
        }
        state.is_event.store(u32::from(is_event), Ordering::Relaxed);
        let used = &self.header().used;
        if used.load(Ordering::Relaxed) <= record {
            used.fetch_max(record + 1, Ordering::AcqRel);
        }
        open_count::start_generation(&state.generation)
    }

    /// Ends the use of a record that no process has open. The exporter only.
    pub(super) fn end_use(&self, record: u32) {
        self.state(record).is_event.store(0, Ordering::Release);
    }

    /// Fails the unfinished signals of dead owners in all events.
    pub(super) fn fail_orphans(&self, liveness: &dyn Liveness) {
        let used = self.header().used.load(Ordering::Acquire).min(MAX_RECORDS);
        for record in 0..used {
            if self.state(record).is_event.load(Ordering::Acquire) != 0 {
                self.slot(record).fail_orphans(liveness);
            }
        }
    }

    /// Returns the descriptor to send to importers.
    pub(super) fn file(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// Declares this process to be `owner`, until it ends or drops this. Only the first call counts.
    pub(super) fn lock_liveness(&self, owner: Owner) -> Result<()> {
        let mut lock = self.liveness.lock();
        if lock.is_none() {
            let locks = LivenessLocks::get()?;
            let held = locks.hold(self.file.as_fd(), lock_of(owner), LockKind::Exclusive);
            *lock = Some(held.map_err(|errno| match errno {
                Errno::EXIST => Error::Protocol("its arena is another one's"),
                errno => Error::os("locking a place in an arena")(errno),
            })?);
        }
        Ok(())
    }

    /// Returns whether another process, or another copy of this library in this one, is `owner`. One
    /// system call. Where the liveness locks are not separate, this process's own counts as free.
    pub(super) fn is_alive(&self, owner: Owner) -> bool {
        // Where the kernel cannot say, hang-ups still tell.
        lock::is_held(self.file.as_fd(), lock_of(owner)).unwrap_or(true)
    }
}

/// Returns the byte that `owner` locks.
fn lock_of(owner: Owner) -> u64 {
    LOCKS_AT + u64::from(owner.get())
}
