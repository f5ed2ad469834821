//! The arena: what a context shares with every importer, in one memfd.

use super::holding;
use super::pins::{Pinner, Pins};
use crate::error::{Error, Result};
use crate::event_protocol::{Liveness, Owner, Slot};
use crate::os::keeper::{Keeper, Proof};
use crate::os::mapping::Mapping;
use crate::os::{lock, memfd};
use crate::types::Access;
use rustix::io::Errno;
use std::mem::size_of;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Objects that one context can share at a time.
pub(crate) const MAX_RECORDS: u32 = 1 << 20;

const MAGIC: u64 = u64::from_le_bytes(*b"XHARENA1");
const RECORDS_AT: usize = 4096;
const SLOTS_AT: usize = RECORDS_AT + MAX_RECORDS as usize * size_of::<Entry>();
/// Most of it is never touched and takes no memory.
const LEN: usize = SLOTS_AT + MAX_RECORDS as usize * size_of::<Slot>();
/// Where the proofs of life are locked: far behind the last byte.
const LOCKS_AT: u64 = 1 << 40;

// Parts of it are pinned in pages.
const _: () = assert!(SLOTS_AT.is_multiple_of(4096));
const _: () = assert!(SLOTS_AT.is_multiple_of(align_of::<Slot>()));
// Three pairs of cache lines; the first line has all that a signal touches.
const _: () = assert!(size_of::<Slot>() == 384);

#[repr(C)]
struct Header {
    magic: AtomicU64,
    /// Records that were ever used: how far to look.
    used: AtomicU32,
}

#[repr(C)]
struct Entry {
    generation: AtomicU32,
    is_event: AtomicU32,
}

/// A mapped arena, the exporter's own or an importer's view of it.
pub(crate) struct Arena {
    pins: Pins,
    /// Pins keep it too.
    mapping: Arc<Mapping>,
    file: Arc<OwnedFd>,
    /// That this process lives, once others rely on it.
    proof: Mutex<Option<Proof>>,
}

/// Where a slot is, for whoever keeps its arena and looks at it again and again.
pub(super) struct SlotPlace(NonNull<Slot>);

// SAFETY: it stands for a shared reference, and slots may be shared.
unsafe impl Send for SlotPlace {}
// SAFETY: as above.
unsafe impl Sync for SlotPlace {}

impl SlotPlace {
    /// # Safety
    /// The arena is kept for as long as this.
    #[inline]
    pub(super) unsafe fn new(arena: &Arena, record: u32) -> Self {
        Self(NonNull::from(arena.slot(record)))
    }

    #[inline]
    pub(super) fn get(&self) -> &Slot {
        // SAFETY: the slot lives as long as its arena, which is kept, as promised.
        unsafe { self.0.as_ref() }
    }
}

impl Arena {
    /// A new, empty one.
    pub(crate) fn create() -> Result<Self> {
        let file = memfd::create("crosshandle-arena", LEN as u64)
            .map_err(Error::os("creating an arena"))?;
        let arena = Self::map(file)?;
        arena.header().magic.store(MAGIC, Ordering::Release);
        Ok(arena)
    }

    /// The one behind a descriptor that an exporter sent.
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
            proof: Mutex::default(),
        })
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is page-aligned, longer than a header, sealed against shrinking and
        // lives as long as `self`. All fields are atomic, and any bits are valid in them.
        unsafe { &*self.mapping.start().as_ptr().cast() }
    }

    fn entry(&self, record: u32) -> &Entry {
        assert!(record < MAX_RECORDS);
        // SAFETY: in bounds by the assertion and LEN; otherwise as for the header.
        unsafe {
            &*self
                .mapping
                .start()
                .as_ptr()
                .add(RECORDS_AT + record as usize * size_of::<Entry>())
                .cast()
        }
    }

    /// The generation of a record below [`MAX_RECORDS`].
    #[inline]
    pub(super) fn generation(&self, record: u32) -> &AtomicU32 {
        &self.entry(record).generation
    }

    /// The event slot of a record below [`MAX_RECORDS`].
    #[inline]
    pub(crate) fn slot(&self, record: u32) -> &Slot {
        assert!(record < MAX_RECORDS);
        // SAFETY: in bounds by the assertion and LEN, aligned by the assertion on SLOTS_AT;
        // otherwise as for the header.
        unsafe {
            &*self
                .mapping
                .start()
                .as_ptr()
                .add(SLOTS_AT + record as usize * size_of::<Slot>())
                .cast()
        }
    }

    /// Lets the devices of `pinner` access one of the slots, until the arena is dropped.
    pub(super) fn pin(&self, slot: &Slot, pinner: &dyn Pinner) -> Result<()> {
        let (start, len) = (self.mapping.start(), self.mapping.len());
        let offset = ptr::from_ref(slot).addr() - start.addr().get();
        assert!((SLOTS_AT..len).contains(&offset), "a slot of this arena");
        // SAFETY: mapped for both.
        unsafe {
            let offset = offset - SLOTS_AT;
            self.pins.pin(pinner, &self.mapping, SLOTS_AT, offset)
        }
    }

    /// Puts a record to use, for an event or for memory. The exporter only.
    pub(super) fn begin(&self, record: u32, is_event: bool) -> u32 {
        let entry = self.entry(record);
        if is_event {
            self.slot(record).reset();
        }
        entry.is_event.store(u32::from(is_event), Ordering::Relaxed);
        let used = &self.header().used;
        if used.load(Ordering::Relaxed) <= record {
            used.fetch_max(record + 1, Ordering::AcqRel);
        }
        holding::begin(&entry.generation)
    }

    /// Ends the use of a record that nobody has open. The exporter only.
    pub(super) fn end(&self, record: u32) {
        self.entry(record).is_event.store(0, Ordering::Release);
    }

    /// Fails the unfinished signals of dead owners in all events.
    pub(super) fn fail_orphans(&self, liveness: &dyn Liveness) {
        let used = self.header().used.load(Ordering::Acquire).min(MAX_RECORDS);
        for record in 0..used {
            if self.entry(record).is_event.load(Ordering::Acquire) != 0 {
                self.slot(record).fail_orphans(liveness);
            }
        }
    }

    /// The descriptor to send to importers.
    pub(super) fn file(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// Declares this process to be `owner`, until it ends or drops this. Only the first time
    /// counts.
    pub(super) fn lock_liveness(&self, owner: Owner) -> Result<()> {
        let mut proof = self.proof.lock().unwrap_or_else(PoisonError::into_inner);
        if proof.is_none() {
            let held = keeper()?.hold(self.file.as_fd(), place_of(owner));
            *proof = Some(held.map_err(|errno| match errno {
                Errno::EXIST => Error::Protocol("its arena is another one's"),
                errno => Error::os("locking a place in an arena")(errno),
            })?);
        }
        Ok(())
    }

    /// Whether somebody else is `owner`: another process, or another copy of this library in this
    /// one. One system call. Where the keeper is not apart, this process's own place counts as
    /// free.
    pub(super) fn is_alive(&self, owner: Owner) -> bool {
        // Where the kernel cannot say, hang-ups still tell.
        lock::is_held(self.file.as_fd(), place_of(owner)).unwrap_or(true)
    }
}

/// The byte that `owner` locks.
fn place_of(owner: Owner) -> u64 {
    LOCKS_AT + u64::from(owner.get())
}

/// Who proves that this process lives.
pub(super) fn keeper() -> Result<&'static Keeper> {
    Keeper::get().map_err(|error| match Errno::from_io_error(&error) {
        Some(errno @ (Errno::MFILE | Errno::NFILE)) => Error::os("proving to be alive")(errno),
        _ => Error::LimitReached {
            what: format!("the thread that proves this process alive cannot be started: {error}"),
            remedy: "raise RLIMIT_NPROC (ulimit -u)".into(),
        },
    })
}
