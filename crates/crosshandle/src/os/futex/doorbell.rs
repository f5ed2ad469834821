//! Doorbells: a word for a stretch of shared memory that is rung when a word there is woken.
//!
//! A thread that sleeps on more words than the kernel watches at once sleeps on the doorbells of
//! their memory instead. The upper half of a doorbell counts rings; the lower half counts the
//! listeners, whom each ring takes out. A doorbell without listeners is not rung.

use super::wake_word;
use crate::os::process;
use std::collections::BTreeMap;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

/// Bytes that a doorbell takes: a cache line.
pub(crate) const DOORBELL_BYTES: usize = 64;
/// The bits of a doorbell that count listeners.
const LISTENERS: u64 = u32::MAX as u64;

/// The doorbells of this process's memory, by the address of the first byte that each is for.
static DOORBELLS: RwLock<BTreeMap<usize, Place>> = RwLock::new(BTreeMap::new());

/// The memory of a doorbell.
#[derive(Clone, Copy)]
struct Place {
    /// Address after the last byte that the doorbell is for.
    end: usize,
    /// Address of the doorbell.
    word: usize,
}

/// A doorbell of memory of this process, until this is dropped.
pub(crate) struct Doorbell {
    start: usize,
}

impl Doorbell {
    /// Makes the doorbell known that follows `len` bytes of memory.
    ///
    /// # Safety
    /// `len` bytes from `start` on, and [`DOORBELL_BYTES`] after them, are mapped for reading and writing
    /// until the result has been dropped; all processes access their words of 64 bits atomically.
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        let start = start.as_ptr().expose_provenance();
        let word = (start + len).next_multiple_of(align_of::<AtomicU64>());
        let place = Place {
            end: start + len,
            word,
        };
        let mut doorbells = DOORBELLS.write().unwrap_or_else(PoisonError::into_inner);
        doorbells.insert(start, place);
        Self { start }
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        // A thread of the parent may hold the lock.
        if !process::is_forked() {
            let mut doorbells = DOORBELLS.write().unwrap_or_else(PoisonError::into_inner);
            doorbells.remove(&self.start);
        }
    }
}

/// Memory with a doorbell, while it is certain to be mapped.
pub(super) struct View<'a> {
    start: usize,
    place: Place,
    _doorbells: &'a BTreeMap<usize, Place>,
}

impl View<'_> {
    /// Calls `f` with the memory that an address lies in; `None` if that has no doorbell.
    pub(super) fn of<T>(address: usize, f: impl FnOnce(View<'_>) -> T) -> Option<T> {
        let doorbells = DOORBELLS.read().unwrap_or_else(PoisonError::into_inner);
        let (start, place) = doorbells.range(..=address).next_back()?;
        let view = View {
            start: *start,
            place: *place,
            _doorbells: &doorbells,
        };
        (address < place.end).then(|| f(view))
    }

    /// Returns the address of the memory.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// Returns the upper half of a word; `None` if none is at this address.
    pub(super) fn upper(&self, address: usize) -> Option<u32> {
        let is_inside = address >= self.start && address + size_of::<AtomicU64>() <= self.place.end;
        (is_inside && address.is_multiple_of(align_of::<AtomicU64>()))
            .then(|| (self.word(address).load(Ordering::SeqCst) >> 32) as u32)
    }

    /// Returns how often the doorbell was rung, modulo 2³².
    pub(super) fn rings(&self) -> u32 {
        (self.word(self.place.word).load(Ordering::SeqCst) >> 32) as u32
    }

    /// Counts the calling thread among the listeners until the next ring. Returns the doorbell's
    /// address, and how often it was rung.
    pub(super) fn listen(&self) -> (usize, u32) {
        let doorbell = self.word(self.place.word);
        let mut current = doorbell.load(Ordering::SeqCst);
        // Only a hostile peer counts this far, or listeners that have ended: who rings wakes them all.
        while current & LISTENERS != LISTENERS {
            let counted = current + 1;
            match doorbell.compare_exchange(current, counted, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(seen) => current = seen,
            }
        }
        (self.place.word, (current >> 32) as u32)
    }

    /// Returns a word of the memory, or the doorbell.
    fn word(&self, address: usize) -> &AtomicU64 {
        // SAFETY: the caller gives the doorbell's address, or that of an aligned word inside. They are
        // mapped while `self` borrows the map, by the promise to `Doorbell::new`: who drops a doorbell
        // waits for the lock. All processes access them atomically.
        unsafe { &*ptr::with_exposed_provenance::<AtomicU64>(address) }
    }
}

/// Rings the doorbell of the memory that a word lies in, if anybody listens.
pub(super) fn ring_for(word: &AtomicU64) {
    if process::is_forked() {
        return;
    }
    View::of(ptr::from_ref(word).addr(), |view| {
        let doorbell = view.word(view.place.word);
        // A listener has counted itself here before it looked at the word for the last time.
        let mut current = doorbell.load(Ordering::SeqCst);
        while current & LISTENERS != 0 {
            let rung = (current & !LISTENERS).wrapping_add(1 << 32);
            match doorbell.compare_exchange(current, rung, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return wake_word(doorbell),
                Err(seen) => current = seen,
            }
        }
    });
}
