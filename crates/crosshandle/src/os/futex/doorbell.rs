//! Doorbells: how a thread sleeps on any number of words in one stretch of shared memory.
//!
//! The thread sleeps on the doorbell of the memory. Whoever wakes the sleepers of a word there also
//! writes the word into a log behind the memory, and rings. So the thread learns which words to look
//! at, whatever their number. (A sleep of its own on each word, which the kernel offers by io_uring, makes
//! every wake slow: the kernel finds sleepers by short lists, which a hundred thousand make long.)
//!
//! | word | holds | written by |
//! |---|---|---|
//! | 0 | the number of rings in the upper half, listeners that sleep or are about to in the lower | listeners; who rings sets the lower half to 0 |
//! | 1 | the number of entries that were ever written to the log | who wakes |
//! | 8 and on | entries, a power of two of them: the lower half of the entry's number plus 1, and the word's offset in the memory | who wakes |
//!
//! The log says too little if it has turned around since a listener looked, or if who wakes has taken
//! a number and not written the entry. Then the listener looks at all words. Everybody who has the
//! memory can write anything into it: entries are hints.

use super::wake_word;
use crate::os::fork::PerProcess;
use std::collections::BTreeMap;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

const WORD: usize = size_of::<AtomicU64>();
/// Index of the first entry: it starts a cache line.
const ENTRIES_AT: usize = 8;
/// Index of the number of entries.
pub(super) const WRITTEN: usize = 1;
/// The bits of the first word that count listeners.
const LISTENERS: u64 = u32::MAX as u64;
/// The most entries: as many as may be woken while a listener looks at what was woken before.
const MAX_ENTRIES: usize = 4096;
/// The fewest entries.
const MIN_ENTRIES: usize = 16;

/// Returns the bytes behind memory for its doorbell, if `sleeps` sleep there at a time as a rule.
pub(crate) const fn doorbell_bytes(sleeps: usize) -> usize {
    (ENTRIES_AT + entries(sleeps)) * WORD
}

const fn entries(sleeps: usize) -> usize {
    let entries = sleeps.next_power_of_two();
    match entries {
        ..MIN_ENTRIES => MIN_ENTRIES,
        MAX_ENTRIES.. => MAX_ENTRIES,
        _ => entries,
    }
}

/// The doorbells of this process's memory, by the address of the first byte that each is for.
static DOORBELLS: PerProcess<RwLock<BTreeMap<usize, Stretch>>> = PerProcess::new(RwLock::default);

/// The memory of a doorbell.
#[derive(Clone, Copy)]
struct Stretch {
    /// Address after the last byte that the doorbell is for: of its own first word.
    end: usize,
    entries: usize,
}

/// A doorbell of memory of this process, until this is dropped.
pub(crate) struct Doorbell {
    start: usize,
}

impl Doorbell {
    /// Makes the doorbell known that follows `len` bytes of memory, a multiple of 8.
    ///
    /// # Safety
    /// `len` bytes from `start` on, which is a multiple of 8, and [`doorbell_bytes`] of `sleeps` after them
    /// are mapped for reading and writing until the result has been dropped. All processes access their
    /// words of 64 bits atomically.
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize, sleeps: usize) -> Self {
        let start = start.as_ptr().expose_provenance();
        let place = Stretch {
            end: start + len,
            entries: entries(sleeps),
        };
        let mut doorbells = DOORBELLS.write().unwrap_or_else(PoisonError::into_inner);
        doorbells.insert(start, place);
        Self { start }
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        let mut doorbells = DOORBELLS.write().unwrap_or_else(PoisonError::into_inner);
        doorbells.remove(&self.start);
    }
}

/// Memory with a doorbell, while it is certain to be mapped.
pub(super) struct View<'a> {
    start: usize,
    place: Stretch,
    /// Who drops a doorbell waits for it.
    _doorbells: &'a RwLockReadGuard<'a, BTreeMap<usize, Stretch>>,
}

/// What a listener has to look at.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// The words at these addresses, and no others.
    These(Vec<usize>),
    /// All words.
    Unknown,
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
        let offset = address.checked_sub(self.start)?;
        let is_word = offset.is_multiple_of(WORD) && address < self.place.end;
        is_word.then(|| upper(self.word(address).load(Ordering::SeqCst)))
    }

    /// Counts the calling thread among the listeners until the next ring. Returns the address of the
    /// word to sleep on and its upper half.
    pub(super) fn listen(&self) -> (usize, u32) {
        let bell = self.bell();
        let mut current = bell.load(Ordering::SeqCst);
        // Only a hostile peer counts this far, or listeners that have ended: who rings wakes them all.
        while current & LISTENERS != LISTENERS {
            let counted = current + 1;
            match bell.compare_exchange(current, counted, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(seen) => current = seen,
            }
        }
        (self.place.end, upper(current))
    }

    /// Returns whether the doorbell has been rung since [`listen`](Self::listen) returned `rings`.
    pub(super) fn is_rung(&self, rings: u32) -> bool {
        upper(self.bell().load(Ordering::SeqCst)) != rings
    }

    /// Returns the number of entries so far, from which a new listener reads.
    pub(super) fn written(&self) -> u64 {
        self.doorbell_word(WRITTEN).load(Ordering::SeqCst)
    }

    /// Returns the words that were woken since the log had `read` entries, and sets that to the present
    /// number.
    pub(super) fn read(&self, read: &mut u64) -> Woken {
        let written = self.written();
        let from = std::mem::replace(read, written);
        let count = written.wrapping_sub(from);
        if count > self.place.entries as u64 {
            return Woken::Unknown;
        }
        let mut words = Vec::with_capacity(count as usize);
        for number in (0..count).map(|step| from.wrapping_add(step)) {
            let entry = self.entry(number).load(Ordering::SeqCst);
            if upper(entry) != mark(number) {
                // Not written yet, and perhaps never. But the word was completed before its number was
                // taken.
                return Woken::Unknown;
            }
            words.push(self.start + entry as u32 as usize);
        }
        Woken::These(words)
    }

    /// Writes a word into the log, and rings if anybody listens.
    fn ring(&self, address: usize) {
        let number = self.doorbell_word(WRITTEN).fetch_add(1, Ordering::SeqCst);
        let offset = (address - self.start) as u64 & u64::from(u32::MAX);
        let entry = u64::from(mark(number)) << 32 | offset;
        self.entry(number).store(entry, Ordering::SeqCst);
        // A listener has counted itself before it read the log.
        let bell = self.bell();
        let mut current = bell.load(Ordering::SeqCst);
        while current & LISTENERS != 0 {
            let rung = (current & !LISTENERS).wrapping_add(1 << 32);
            match bell.compare_exchange(current, rung, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return wake_word(bell),
                Err(seen) => current = seen,
            }
        }
    }

    fn bell(&self) -> &AtomicU64 {
        self.doorbell_word(0)
    }

    fn entry(&self, number: u64) -> &AtomicU64 {
        let place = number as usize & (self.place.entries - 1);
        self.doorbell_word(ENTRIES_AT + place)
    }

    fn doorbell_word(&self, index: usize) -> &AtomicU64 {
        self.word(self.place.end + index * WORD)
    }

    /// Returns a word of the memory or of its doorbell.
    fn word(&self, address: usize) -> &AtomicU64 {
        // SAFETY: the callers give the address of an aligned word of the memory, or of one of the words
        // that `doorbell_bytes` counts. They are mapped while `self` holds the lock, by the promise to
        // `Doorbell::new`. All processes access them atomically.
        unsafe { &*ptr::with_exposed_provenance::<AtomicU64>(address) }
    }
}

/// Rings the doorbell of the memory that a word lies in, if it has one. To be called after the word
/// has changed.
pub(super) fn ring_for(word: &AtomicU64) {
    let address = ptr::from_ref(word).addr();
    View::of(address, |view| view.ring(address));
}

/// Returns what tells an entry from earlier ones in its place, and from none: memory is made of zeros.
fn mark(number: u64) -> u32 {
    (number as u32).wrapping_add(1)
}

fn upper(word: u64) -> u32 {
    (word >> 32) as u32
}
