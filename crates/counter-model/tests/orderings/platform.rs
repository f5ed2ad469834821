//! The platform on which the protocol runs under loom: atomic words, a futex, and no clock.

use loom::sync::{Condvar, Mutex};
use std::ops::Add;
use std::ptr;
use std::time::Duration;

pub(crate) use crate::atomics::{AtomicU32, AtomicU64};
pub(crate) use loom::hint::spin_loop as spin_hint;
pub(crate) use std::sync::atomic::Ordering;

/// Whether waiters spin before they sleep. Spinning would only repeat a poll.
pub(crate) const MAY_SPIN: bool = false;

/// The only moment, because no sleep ever times out here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant;

impl Instant {
    /// Returns the only moment.
    pub(crate) fn now() -> Self {
        Self
    }

    /// Returns zero.
    pub(crate) fn saturating_duration_since(&self, _: Self) -> Duration {
        Duration::ZERO
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, _: Duration) -> Self {
        self
    }
}

/// Returns the only CPU.
pub(crate) fn current_cpu() -> u32 {
    0
}

/// The signal that a sleeper waits for, for reports.
#[allow(dead_code, reason = "no tool looks here")]
pub(crate) struct Awaited {
    pub(crate) word: usize,
    pub(crate) slot: usize,
    pub(crate) number: u64,
}

/// Does nothing. Only the futex knows the sleepers, and they are not woken for other reasons.
pub(crate) fn enter(_: impl IntoIterator<Item = Awaited>) {}

/// The sleepers and their words. Comparing and falling asleep are one step with respect to waking.
/// The kernel holds a lock over both.
struct Kernel {
    sleepers: Mutex<Sleepers>,
    woken: Condvar,
}

#[derive(Default)]
struct Sleepers {
    /// Number of sleepers so far, including those that were woken.
    total: usize,
    /// The number of each sleeper, with the words that it sleeps on.
    asleep: Vec<(usize, Vec<usize>)>,
}

impl Sleepers {
    fn contains(&self, number: usize) -> bool {
        self.asleep.iter().any(|(sleeper, _)| *sleeper == number)
    }
}

loom::lazy_static! {
    static ref KERNEL: Kernel = Kernel {
        sleepers: Mutex::new(Sleepers::default()),
        woken: Condvar::new(),
    };
}

/// Sleeps until the word is woken. Returns at once if its upper half is not `expected`.
pub(crate) fn sleep(word: &AtomicU64, expected: u32, limit: Duration) {
    sleep_any(&[(word, expected)], limit);
}

/// Sleeps until one of several words is woken. Returns at once if one of their upper halves is not
/// as expected.
pub(crate) fn sleep_any(words: &[(&AtomicU64, u32)], _: Duration) {
    let mut sleepers = KERNEL.sleepers.lock().unwrap();
    if words
        .iter()
        .any(|(word, expected)| (word.load(Ordering::SeqCst) >> 32) as u32 != *expected)
    {
        return;
    }
    let myself = sleepers.total;
    sleepers.total += 1;
    let words = words.iter().map(|(word, _)| address(word)).collect();
    sleepers.asleep.push((myself, words));
    while sleepers.contains(myself) {
        sleepers = KERNEL.woken.wait(sleepers).unwrap();
    }
}

/// Wakes all sleepers of the word.
pub(crate) fn wake_all(word: &AtomicU64) {
    let mut sleepers = KERNEL.sleepers.lock().unwrap();
    sleepers
        .asleep
        .retain(|(_, words)| !words.contains(&address(word)));
    KERNEL.woken.notify_all();
}

fn address(word: &AtomicU64) -> usize {
    ptr::from_ref(word).addr()
}
