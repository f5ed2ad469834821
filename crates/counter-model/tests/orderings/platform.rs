//! The platform on which the protocol runs under loom: atomic words, a futex, and no clock.

use crosshandle_events::platform::{Awaited, Moment, Platform};
use loom::sync::{Condvar, Mutex};
use std::ops::Add;
use std::ptr;
use std::time::Duration;

pub(crate) use crate::atomics::{AtomicU32, AtomicU64};
pub(crate) use std::sync::atomic::Ordering;

/// The machine that loom controls.
#[derive(Clone, Copy)]
pub(crate) enum Loom {}

impl Platform for Loom {
    type AtomicU32 = AtomicU32;
    type AtomicU64 = AtomicU64;
    type Instant = Instant;
    type Entry = ();

    /// Returns false, because spinning would only repeat a poll.
    fn may_spin() -> bool {
        false
    }

    fn spin_hint() {
        loom::hint::spin_loop();
    }

    /// Returns the only CPU.
    fn current_cpu() -> u32 {
        0
    }

    fn sleep(word: &AtomicU64, expected: u32, limit: Duration) {
        Self::sleep_any(&[(word, expected)], limit);
    }

    /// Sleeps until a word is woken, because no sleep times out.
    fn sleep_any(words: &[(&AtomicU64, u32)], _: Duration) {
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

    fn wake_all(word: &AtomicU64) {
        let mut sleepers = KERNEL.sleepers.lock().unwrap();
        sleepers
            .asleep
            .retain(|(_, words)| !words.contains(&address(word)));
        KERNEL.woken.notify_all();
    }

    /// Does nothing. Only the futex knows the sleepers, and they are not woken for other reasons.
    fn enter(_: impl IntoIterator<Item = Awaited>) {}
}

/// The only moment, because no sleep ever times out here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant;

impl Moment for Instant {
    fn now() -> Self {
        Self
    }

    fn saturating_duration_since(&self, _: Self) -> Duration {
        Duration::ZERO
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, _: Duration) -> Self {
        self
    }
}

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

fn address(word: &AtomicU64) -> usize {
    ptr::from_ref(word).addr()
}
