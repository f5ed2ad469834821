//! One timer for all sleepers of the process.
//!
//! A sleeper must look now and then whether the process that it waits for still lives. A timer of
//! its own costs each sleep about 0.4 µs; so one thread nudges them all, as long as there are any.

use super::futex;
use std::num::NonZeroU32;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How often sleepers are nudged.
pub(super) const INTERVAL: Duration = Duration::from_millis(40);
/// Intervals without a sleeper after which the thread ends.
const PATIENCE: u32 = 50;

struct Sleepers {
    /// Addresses of words that somebody of this process sleeps on, once for each sleeper.
    words: Vec<usize>,
    has_thread: bool,
}

static SLEEPERS: Mutex<Sleepers> = Mutex::new(Sleepers {
    words: Vec::new(),
    has_thread: false,
});

fn sleepers() -> MutexGuard<'static, Sleepers> {
    SLEEPERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What tells our sleepers on a shared word from most other processes' ones.
pub(super) fn our_bits() -> NonZeroU32 {
    static BITS: OnceLock<NonZeroU32> = OnceLock::new();
    *BITS.get_or_init(|| {
        let bit = 1_u32.rotate_left(std::process::id());
        NonZeroU32::new(bit).expect("one bit is set")
    })
}

/// A sleeper that is nudged until it is dropped.
pub(super) struct Nudged(usize);

impl Nudged {
    /// `None` if there is no thread for it.
    pub(super) fn new(word: &AtomicU64) -> Option<Self> {
        let address = std::ptr::from_ref(word).expose_provenance();
        let mut sleepers = sleepers();
        if !sleepers.has_thread {
            let thread = std::thread::Builder::new().name("crosshandle-tick".into());
            sleepers.has_thread = thread.spawn(run).is_ok();
        }
        if !sleepers.has_thread {
            return None;
        }
        sleepers.words.push(address);
        Some(Self(address))
    }
}

impl Drop for Nudged {
    fn drop(&mut self) {
        let mut sleepers = sleepers();
        // The latest ones wake first as a rule.
        if let Some(place) = sleepers.words.iter().rposition(|word| *word == self.0) {
            sleepers.words.swap_remove(place);
        }
    }
}

fn run() {
    let mut idle = 0;
    loop {
        std::thread::sleep(INTERVAL);
        let mut sleepers = sleepers();
        idle = if sleepers.words.is_empty() {
            idle + 1
        } else {
            0
        };
        if idle > PATIENCE {
            sleepers.has_thread = false;
            return;
        }
        wake(&sleepers);
    }
}

/// Nudges all sleepers now: something has happened that their words don't tell.
pub(crate) fn nudge() {
    wake(&sleepers());
}

fn wake(sleepers: &Sleepers) {
    // One call a word, however many sleep on it.
    let mut words = sleepers.words.clone();
    words.sort_unstable();
    words.dedup();
    for address in &words {
        let word = std::ptr::with_exposed_provenance::<AtomicU64>(*address);
        // SAFETY: its sleeper borrows the word until it has taken the address out, for which it
        // needs the lock that the caller holds.
        futex::wake_some(unsafe { &*word }, our_bits());
    }
}
