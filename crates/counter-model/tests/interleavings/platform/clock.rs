//! A clock that advances only while a process sleeps or spins.

use crosshandle_events::platform::Moment;
use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time that one round of a spinning loop takes. A waiter stops spinning after a few rounds.
pub(super) const SPIN_ROUND: Duration = Duration::from_micros(10);

// This is not one of the model's atomic words, because reading the clock is not a step of the
// protocol.
shuttle::lazy_static! {
    static ref NANOSECONDS: AtomicU64 = AtomicU64::new(0);
}

/// A moment, as the time since the start of the execution.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Instant(Duration);

impl Moment for Instant {
    fn now() -> Self {
        Self(Duration::from_nanos(NANOSECONDS.load(Ordering::Relaxed)))
    }

    fn saturating_duration_since(&self, earlier: Self) -> Duration {
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
