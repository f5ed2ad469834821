//! Doorbells, as `os/futex/doorbell.rs` has them: the same steps in the same order.

use super::AtomicU64 as Word;
use super::futex::wake_word;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The bits of a doorbell that count listeners.
const LISTENERS: u64 = u32::MAX as u64;

#[derive(Default)]
struct Doorbells {
    /// The addresses of memory, and its doorbell.
    places: Mutex<Vec<(Range<usize>, Arc<Word>)>>,
    /// Whether waking rings none.
    is_mute: AtomicBool,
}

shuttle::lazy_static! {
    static ref DOORBELLS: Doorbells = Doorbells::default();
}

/// Gives an object a doorbell, which others may have too.
pub(crate) fn add_doorbell<T>(object: &T, doorbell: &Arc<Word>) {
    let start = ptr::from_ref(object).addr();
    let place = (start..start + size_of::<T>(), Arc::clone(doorbell));
    DOORBELLS.places.lock().unwrap().push(place);
}

/// Has no doorbell rung from now on but by [`ring`].
pub(crate) fn mute_doorbells() {
    DOORBELLS.is_mute.store(true, Ordering::Relaxed);
}

/// Returns how often a doorbell was rung.
pub(crate) fn rings(doorbell: &Word) -> u32 {
    (doorbell.load(Ordering::SeqCst) >> 32) as u32
}

/// Counts the caller among the listeners until the next ring. Returns how often the doorbell was rung.
pub(crate) fn listen(doorbell: &Word) -> u32 {
    let mut current = doorbell.load(Ordering::SeqCst);
    while current & LISTENERS != LISTENERS {
        let counted = current + 1;
        match doorbell.compare_exchange(current, counted, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => break,
            Err(seen) => current = seen,
        }
    }
    (current >> 32) as u32
}

/// Rings the doorbell of a word, if it has one.
pub(super) fn ring_for(word: &Word) {
    if !DOORBELLS.is_mute.load(Ordering::Relaxed) {
        ring(word);
    }
}

/// Does so also if doorbells are mute.
pub(crate) fn ring(word: &Word) {
    let address = ptr::from_ref(word).addr();
    let doorbell = {
        let places = DOORBELLS.places.lock().unwrap();
        let place = places.iter().find(|(range, _)| range.contains(&address));
        place.map(|(_, doorbell)| Arc::clone(doorbell))
    };
    let Some(doorbell) = doorbell else {
        return;
    };
    let mut current = doorbell.load(Ordering::SeqCst);
    while current & LISTENERS != 0 {
        let rung = (current & !LISTENERS).wrapping_add(1 << 32);
        match doorbell.compare_exchange(current, rung, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return wake_word(&doorbell),
            Err(seen) => current = seen,
        }
    }
}
