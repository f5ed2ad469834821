//! Doorbells, which let a thread sleep on any number of words in one range of shared memory.
//!
//! The thread sleeps on the doorbell of the memory. A thread that wakes the sleepers of a word
//! there also records the word in a log behind the memory, and rings. The listener thus learns
//! which words to look at, whatever their number. A separate sleep on each word, which io_uring
//! offers, would make every wake slow: the kernel keeps sleepers in few lists, and a hundred
//! thousand sleepers make these lists long.
//!
//! The doorbell consists of these words:
//!
//! - Word 0 holds the number of rings in its upper half. Its lower half counts listeners that sleep
//!   or are about to sleep. Listeners raise the count, and a ring sets it to 0.
//! - Word 1 holds the number of entries ever written to the log. Threads that wake write it.
//! - Words 8 and up are the entries, whose number is a power of two. An entry holds the lower half
//!   of its own number plus 1, and the word's offset. Threads that wake write it.
//!
//! The log is incomplete if it has wrapped since a listener looked, or if a waking thread has taken
//! a number without writing the entry. The listener then looks at all words. Every process that has
//! the memory can write anything into the log, so entries are only hints.

use super::wake_word;
use crate::fork::PerProcess;
use std::collections::BTreeMap;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

const WORD: usize = size_of::<AtomicU64>();
/// Index of the first entry, which starts a cache line.
const ENTRIES_AT: usize = 8;
/// Index of the number of written entries.
pub(super) const WRITTEN: usize = 1;
/// Bits of the first word that count listeners.
const LISTENERS: u64 = u32::MAX as u64;
/// Maximum number of entries. That many words can be woken while a listener looks at earlier ones.
const MAX_ENTRIES: usize = 4096;
/// Minimum number of entries.
const MIN_ENTRIES: usize = 16;

/// Returns the size in bytes of the doorbell that follows memory in which usually at most `sleeps`
/// sleeps are active.
pub const fn doorbell_bytes(sleeps: usize) -> usize {
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

/// The doorbells of this process's memory, by the address of the first byte of that memory.
static DOORBELLS: PerProcess<RwLock<BTreeMap<usize, Stretch>>> = PerProcess::new(RwLock::default);

/// The position of a doorbell.
#[derive(Clone, Copy)]
struct Stretch {
    /// Address after the last byte of the memory, which is the address of the doorbell's first
    /// word.
    end: usize,
    entries: usize,
}

/// A registered doorbell of this process's memory, which is unregistered on drop.
pub struct Doorbell {
    start: usize,
}

impl Doorbell {
    /// Registers the doorbell that follows `len` bytes of memory. `len` is a multiple of 8.
    ///
    /// # Safety
    /// `start` is a multiple of 8. The `len` bytes from `start` on, and [`doorbell_bytes`] of
    /// `sleeps` after them, must be mapped for reading and writing until the result has been
    /// dropped. All processes must access their 64-bit words atomically.
    pub unsafe fn new(start: NonNull<u8>, len: usize, sleeps: usize) -> Self {
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

/// Memory with a doorbell, while it is guaranteed to be mapped.
pub(super) struct View<'a> {
    start: usize,
    place: Stretch,
    /// The lock, which delays the drop of a doorbell.
    _doorbells: &'a RwLockReadGuard<'a, BTreeMap<usize, Stretch>>,
}

/// The words that a listener must look at.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// Only the words at these addresses.
    These(Vec<usize>),
    /// All words, because the log is incomplete.
    Unknown,
}

impl View<'_> {
    /// Calls `f` with the memory that contains an address. Returns `None` if that memory has no
    /// doorbell.
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

    /// Returns the start address of the memory.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// Returns the upper half of the word at an address, or `None` if there is no word.
    pub(super) fn upper(&self, address: usize) -> Option<u32> {
        let offset = address.checked_sub(self.start)?;
        let is_word = offset.is_multiple_of(WORD) && address < self.place.end;
        is_word.then(|| upper(self.word(address).load(Ordering::SeqCst)))
    }

    /// Counts the calling thread as a listener until the next ring. Returns the address of the word
    /// to sleep on, and its upper half.
    pub(super) fn listen(&self) -> (usize, u32) {
        let bell = self.bell();
        let mut current = bell.load(Ordering::SeqCst);
        // Only a hostile peer or listeners that have ended reach this count. The next ring wakes
        // all.
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

    /// Returns the number of entries so far, at which a new listener starts to read.
    pub(super) fn written(&self) -> u64 {
        self.doorbell_word(WRITTEN).load(Ordering::SeqCst)
    }

    /// Returns the words that were woken since the log had `read` entries, and sets `read` to the
    /// current number of entries.
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
                // The entry is not written yet and may never be. However, its word was completed
                // before the entry's number was taken.
                return Woken::Unknown;
            }
            words.push(self.start + entry as u32 as usize);
        }
        Woken::These(words)
    }

    /// Writes a word into the log, and rings if a thread listens.
    fn ring(&self, address: usize) {
        let number = self.doorbell_word(WRITTEN).fetch_add(1, Ordering::SeqCst);
        let offset = (address - self.start) as u64 & u64::from(u32::MAX);
        let entry = u64::from(mark(number)) << 32 | offset;
        self.entry(number).store(entry, Ordering::SeqCst);
        // A listener counts itself before it reads the log.
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
        // SAFETY: the callers pass the address of an aligned word of the memory, or of one of the
        // words that `doorbell_bytes` counts. They are mapped while `self` holds the lock, by the
        // contract of `Doorbell::new`. All processes access them atomically.
        unsafe { &*ptr::with_exposed_provenance::<AtomicU64>(address) }
    }
}

/// Rings the doorbell of the memory that contains a word, if it has one. Must be called after the
/// word has changed.
pub(super) fn ring_for(word: &AtomicU64) {
    let address = ptr::from_ref(word).addr();
    View::of(address, |view| view.ring(address));
}

/// Returns the mark that distinguishes an entry from earlier entries in its place, and from the
/// zeros of new memory.
fn mark(number: u64) -> u32 {
    (number as u32).wrapping_add(1)
}

fn upper(word: u64) -> u32 {
    (word >> 32) as u32
}
