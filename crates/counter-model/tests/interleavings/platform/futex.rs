//! The futex: who sleeps on which words, as the kernel keeps it.
//!
//! The comparison with the expected value and falling asleep are one step against waking, as in
//! the kernel, which holds a lock over both.

use super::AtomicU64 as Word;
use super::chance::one_in;
use super::clock::{self, Instant};
use super::fate::step;
use shuttle::sync::{Condvar, Mutex};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// One process that sleeps on some words.
struct Sleeper {
    words: Vec<usize>,
    bell: Arc<Condvar>,
}

#[derive(Default)]
struct Kernel {
    /// Whoever was woken is not among them any more.
    sleepers: Mutex<Vec<Sleeper>>,
    /// Whether sleeps end by themselves.
    naps_end: AtomicBool,
    /// How long a sleep may be that does.
    longest: AtomicU64,
    /// When each sleep began, and how long it was to be.
    naps: Mutex<Vec<(Instant, Duration)>>,
    /// How many wake calls there were.
    wakes: AtomicU32,
}

shuttle::lazy_static! {
    static ref KERNEL: Kernel = Kernel::default();
}

/// From now on sleeps end when their time is up. Until this is called nobody's time is ever up,
/// so that a lost wake-up shows as a deadlock.
pub(crate) fn naps_end() {
    naps_end_up_to(Duration::MAX);
}

/// The same for sleeps of at most `longest`.
pub(crate) fn naps_end_up_to(longest: Duration) {
    let longest = longest.as_nanos().try_into().unwrap_or(u64::MAX);
    KERNEL.longest.store(longest, Ordering::Relaxed);
    KERNEL.naps_end.store(true, Ordering::Relaxed);
}

/// When each sleep began, and how long it was to be.
pub(crate) fn naps() -> Vec<(Instant, Duration)> {
    KERNEL.naps.lock().unwrap().clone()
}

/// How many sleep at the moment.
pub(crate) fn sleepers() -> usize {
    KERNEL.sleepers.lock().unwrap().len()
}

/// How many wake calls there have been.
pub(crate) fn wakes() -> u32 {
    KERNEL.wakes.load(Ordering::Relaxed)
}

/// Sleeps until somebody wakes the word, unless its upper half is not `expected`; at most `limit`.
pub(crate) fn sleep(word: &Word, expected: u32, limit: Duration) {
    sleep_any(&[(word, expected)], limit);
}

/// The same on several words at once.
pub(crate) fn sleep_any(words: &[(&Word, u32)], limit: Duration) {
    // Now and then a sleep ends for no reason, at once.
    if !step() || one_in(16) {
        return;
    }
    KERNEL.naps.lock().unwrap().push((Instant::now(), limit));
    let ends = KERNEL.naps_end.load(Ordering::Relaxed)
        && limit.as_nanos() <= u128::from(KERNEL.longest.load(Ordering::Relaxed));
    let mut sleepers = KERNEL.sleepers.lock().unwrap();
    if words
        .iter()
        .any(|(word, expected)| (word.peek() >> 32) as u32 != *expected)
    {
        return;
    }
    let bell = Arc::new(Condvar::new());
    sleepers.push(Sleeper {
        words: words.iter().map(|(word, _)| address(word)).collect(),
        bell: bell.clone(),
    });
    let place = |sleepers: &Vec<Sleeper>| {
        sleepers
            .iter()
            .position(|sleeper| Arc::ptr_eq(&sleeper.bell, &bell))
    };
    while let Some(index) = place(&sleepers) {
        if !ends {
            sleepers = bell.wait(sleepers).unwrap();
        } else if one_in(4) {
            sleepers.remove(index);
            clock::pass(limit);
        } else {
            drop(sleepers);
            shuttle::thread::yield_now();
            sleepers = KERNEL.sleepers.lock().unwrap();
        }
    }
}

/// Wakes all sleepers of the word.
pub(crate) fn wake_all(word: &Word) {
    if !step() {
        return;
    }
    KERNEL.wakes.fetch_add(1, Ordering::Relaxed);
    let mut sleepers = KERNEL.sleepers.lock().unwrap();
    sleepers.retain(|sleeper| {
        let woken = sleeper.words.contains(&address(word));
        if woken {
            sleeper.bell.notify_one();
        }
        !woken
    });
}

fn address(word: &Word) -> usize {
    ptr::from_ref(word).addr()
}
