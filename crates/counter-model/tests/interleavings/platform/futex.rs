//! The futex: sleepers and their words, as the kernel keeps them.
//!
//! Comparing the expected value and falling asleep are one step with respect to waking. The kernel
//! holds a lock over both.

use super::AtomicU64 as Word;
use super::chance::one_in;
use super::clock::{self, Instant};
use super::doorbell;
use super::fate::step;
use crosshandle_events::platform::Moment;
use shuttle::sync::{Condvar, Mutex};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A process that sleeps on some words.
struct Sleeper {
    words: Vec<usize>,
    wake_up: Arc<Condvar>,
}

#[derive(Default)]
struct Kernel {
    /// The processes that sleep and have not been woken.
    sleepers: Mutex<Vec<Sleeper>>,
    /// Whether sleeps time out.
    allow_timeouts: AtomicBool,
    /// Longest sleep that can time out, in nanoseconds.
    longest: AtomicU64,
    /// Start and limit of each sleep.
    sleeps: Mutex<Vec<(Instant, Duration)>>,
    /// Number of wake calls so far.
    wakes: AtomicU32,
}

shuttle::lazy_static! {
    static ref KERNEL: Kernel = Kernel::default();
}

/// Lets sleeps time out from now on. Without this call no sleep times out, so a lost wake-up shows
/// as a deadlock.
pub(crate) fn allow_timeouts() {
    allow_timeouts_up_to(Duration::MAX);
}

/// Lets sleeps with a limit of at most `longest` time out from now on.
pub(crate) fn allow_timeouts_up_to(longest: Duration) {
    let longest = longest.as_nanos().try_into().unwrap_or(u64::MAX);
    KERNEL.longest.store(longest, Ordering::Relaxed);
    KERNEL.allow_timeouts.store(true, Ordering::Relaxed);
}

/// Returns the start and the limit of each sleep so far.
pub(crate) fn sleeps() -> Vec<(Instant, Duration)> {
    KERNEL.sleeps.lock().unwrap().clone()
}

/// Returns the number of processes that sleep now.
pub(crate) fn sleepers() -> usize {
    KERNEL.sleepers.lock().unwrap().len()
}

/// Returns the number of wake calls so far.
pub(crate) fn wakes() -> u32 {
    KERNEL.wakes.load(Ordering::Relaxed)
}

/// Sleeps until the word is woken, for at most `limit`. Returns at once if its upper half is not
/// `expected`.
pub(crate) fn sleep(word: &Word, expected: u32, limit: Duration) {
    sleep_any(&[(word, expected)], limit);
}

/// Sleeps until one of several words is woken, for at most `limit`. Returns at once if one of their
/// upper halves is not as expected.
pub(crate) fn sleep_any(words: &[(&Word, u32)], limit: Duration) {
    // A sleep ends spuriously once in 16 times.
    if !step() || one_in(16) {
        return;
    }
    KERNEL.sleeps.lock().unwrap().push((Instant::now(), limit));
    let ends = KERNEL.allow_timeouts.load(Ordering::Relaxed)
        && limit.as_nanos() <= u128::from(KERNEL.longest.load(Ordering::Relaxed));
    let mut sleepers = KERNEL.sleepers.lock().unwrap();
    if words
        .iter()
        .any(|(word, expected)| (word.peek() >> 32) as u32 != *expected)
    {
        return;
    }
    let wake_up = Arc::new(Condvar::new());
    sleepers.push(Sleeper {
        words: words.iter().map(|(word, _)| address(word)).collect(),
        wake_up: wake_up.clone(),
    });
    let position = |sleepers: &Vec<Sleeper>| {
        sleepers
            .iter()
            .position(|sleeper| Arc::ptr_eq(&sleeper.wake_up, &wake_up))
    };
    while let Some(index) = position(&sleepers) {
        if !ends {
            sleepers = wake_up.wait(sleepers).unwrap();
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

/// Wakes all sleepers of the word, and rings the doorbell of the memory that contains it.
pub(crate) fn wake_all(word: &Word) {
    wake_word(word);
    doorbell::ring_for(word);
}

/// Wakes all sleepers of the word, without ringing a doorbell.
pub(super) fn wake_word(word: &Word) {
    if !step() {
        return;
    }
    KERNEL.wakes.fetch_add(1, Ordering::Relaxed);
    let mut sleepers = KERNEL.sleepers.lock().unwrap();
    sleepers.retain(|sleeper| {
        let woken = sleeper.words.contains(&address(word));
        if woken {
            sleeper.wake_up.notify_one();
        }
        !woken
    });
}

fn address(word: &Word) -> usize {
    ptr::from_ref(word).addr()
}
