//! Doorbells with the same steps in the same order as in
//! `crates/crosshandle-os/src/futex/doorbell.rs`, and a log that wraps soon.

use super::AtomicU64 as Word;
use super::futex::wake_word;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// Bits of the first word that count listeners.
const LISTENERS: u64 = u32::MAX as u64;
/// Number of entries of the log.
const ENTRIES: usize = 4;

#[derive(Default)]
struct Doorbells {
    /// The addresses of each memory, and its doorbell.
    places: Mutex<Vec<(Range<usize>, Arc<Doorbell>)>>,
    /// Whether doorbells are disabled.
    is_mute: AtomicBool,
    /// One minus the offset that is added to an entry's number.
    less: AtomicU32,
}

shuttle::lazy_static! {
    static ref DOORBELLS: Doorbells = Doorbells::default();
}

/// The doorbell of a range of memory. An entry holds the lower half of a word's address.
pub(crate) struct Doorbell {
    bell: Word,
    written: Word,
    entries: [Word; ENTRIES],
}

impl Doorbell {
    pub(crate) fn new() -> Self {
        Self {
            bell: Word::new(0),
            written: Word::new(0),
            entries: std::array::from_fn(|_| Word::new(0)),
        }
    }

    /// Returns the word to sleep on.
    pub(crate) fn word(&self) -> &Word {
        &self.bell
    }

    /// Counts the caller as a listener until the next ring. Returns the number of rings so far.
    pub(crate) fn listen(&self) -> u32 {
        let mut current = self.bell.load(Ordering::SeqCst);
        while current & LISTENERS != LISTENERS {
            let counted = current + 1;
            let counted =
                self.bell
                    .compare_exchange(current, counted, Ordering::SeqCst, Ordering::SeqCst);
            match counted {
                Ok(_) => break,
                Err(seen) => current = seen,
            }
        }
        upper(current)
    }

    pub(crate) fn is_rung(&self, rings: u32) -> bool {
        upper(self.bell.load(Ordering::SeqCst)) != rings
    }

    /// Returns the number of entries so far.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    /// Returns the words that were woken since the log had `read` entries, or `None` if the log is
    /// incomplete.
    pub(crate) fn read(&self, read: &mut u64) -> Option<Vec<u32>> {
        let written = self.written();
        let from = std::mem::replace(read, written);
        let count = written.wrapping_sub(from);
        if count > ENTRIES as u64 {
            return None;
        }
        let entry = |number: u64| {
            let entry = self.entry(number).load(Ordering::SeqCst);
            (upper(entry) == mark(number)).then_some(entry as u32)
        };
        (0..count)
            .map(|step| entry(from.wrapping_add(step)))
            .collect()
    }

    fn ring(&self, address: usize) {
        let number = self.written.fetch_add(1, Ordering::SeqCst);
        let entry = u64::from(mark(number)) << 32 | u64::from(address as u32);
        self.entry(number).store(entry, Ordering::SeqCst);
        let mut current = self.bell.load(Ordering::SeqCst);
        while current & LISTENERS != 0 {
            let rung = (current & !LISTENERS).wrapping_add(1 << 32);
            let rung =
                self.bell
                    .compare_exchange(current, rung, Ordering::SeqCst, Ordering::SeqCst);
            match rung {
                Ok(_) => return wake_word(&self.bell),
                Err(seen) => current = seen,
            }
        }
    }

    fn entry(&self, number: u64) -> &Word {
        &self.entries[number as usize % ENTRIES]
    }

    /// Number of words that [`overwrite`](Self::overwrite) can write.
    pub(crate) const WORDS: usize = 2 + ENTRIES;

    /// Writes one of the words, as a hostile process may do.
    pub(crate) fn overwrite(&self, index: usize, value: u64) {
        let words = [&self.bell, &self.written].into_iter();
        let mut words = words.chain(&self.entries);
        let word = words.nth(index).expect("an index below WORDS");
        word.store(value, Ordering::SeqCst);
    }
}

/// Gives an object a doorbell, which other objects may share.
pub(crate) fn add_doorbell<T>(object: &T, doorbell: &Arc<Doorbell>) {
    let start = ptr::from_ref(object).addr();
    let place = (start..start + size_of::<T>(), Arc::clone(doorbell));
    DOORBELLS.places.lock().unwrap().push(place);
}

/// Disables all doorbells from now on, except for [`ring`].
pub(crate) fn mute_doorbells() {
    DOORBELLS.is_mute.store(true, Ordering::Relaxed);
}

/// Makes marks of entries start at 0 or 1. New memory contains zeros, so 0 is wrong.
pub(crate) fn number_entries_from(first: u32) {
    DOORBELLS.less.store(1 - first, Ordering::Relaxed);
}

/// Rings the doorbell of a word, if it has one and doorbells are enabled.
pub(super) fn ring_for(word: &Word) {
    if !DOORBELLS.is_mute.load(Ordering::Relaxed) {
        ring(word);
    }
}

/// Rings the doorbell of a word, if it has one, even if doorbells are disabled.
pub(crate) fn ring(word: &Word) {
    let address = ptr::from_ref(word).addr();
    let doorbell = {
        let places = DOORBELLS.places.lock().unwrap();
        let place = places.iter().find(|(range, _)| range.contains(&address));
        place.map(|(_, doorbell)| Arc::clone(doorbell))
    };
    if let Some(doorbell) = doorbell {
        doorbell.ring(address);
    }
}

/// Returns the mark that distinguishes an entry from earlier entries in its place.
fn mark(number: u64) -> u32 {
    (number as u32)
        .wrapping_add(1)
        .wrapping_sub(DOORBELLS.less.load(Ordering::Relaxed))
}

fn upper(word: u64) -> u32 {
    (word >> 32) as u32
}
