//! A clock that advances only while a process sleeps or spins.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time that one round of a spinning loop takes, so that a waiter stops spinning after a few.
pub(super) const SPIN_ROUND: Duration = Duration::from_micros(10);

// Not one of the model's atomic words: reading the clock is not a step of the protocol.
shuttle::lazy_static! {
    static ref NANOSECONDS: AtomicU64 = AtomicU64::new(0);
}

/// A moment, counted from the start of the execution.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Instant(Duration);

impl Instant {
    /// Returns the present moment.
    pub(crate) fn now() -> Self {
        Self(Duration::from_nanos(NANOSECONDS.load(Ordering::Relaxed)))
    }

    /// Returns the time from `earlier` until this moment; zero if `earlier` is later.
    pub(crate) fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

/// Advances the clock by `time`, for all processes.
pub(super) fn pass(time: Duration) {
    NANOSECONDS.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
}
