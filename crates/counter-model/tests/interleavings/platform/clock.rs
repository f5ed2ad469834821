//! A clock that moves only when somebody sleeps or spins.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What one round of a spinning loop takes: a spinning waiter gives up after a few.
pub(super) const SPIN_ROUND: Duration = Duration::from_micros(10);

// Not one of the model's atomics: reading the clock is no step of the protocol.
shuttle::lazy_static! {
    static ref NANOSECONDS: AtomicU64 = AtomicU64::new(0);
}

/// A moment, counted from the start of the execution.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Instant(Duration);

impl Instant {
    /// This moment.
    pub(crate) fn now() -> Self {
        Self(Duration::from_nanos(NANOSECONDS.load(Ordering::Relaxed)))
    }

    /// The time from `earlier` until this moment; zero if that is later.
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

/// Lets `time` pass, for everybody.
pub(super) fn pass(time: Duration) {
    NANOSECONDS.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
}
