//! The length of a waiter's next sleep.

use super::tuning::{LONGEST_STEP, ORPHAN_INTERVAL, SHORTEST_STEP, STEPS};
use crate::platform::{Moment, Platform};
use std::time::Duration;

/// Longest sleep of a waiter before it polls the word and checks whether the awaited process is
/// alive. It limits how late a waiter notices an unreported death, or a signal whose wake a hostile
/// peer suppresses. In the fault harness it is so long that a missing wake-up shows.
const LIVENESS_INTERVAL: Duration = match cfg!(fault_steps) {
    false => Duration::from_millis(40),
    true => Duration::from_secs(3),
};

/// Computes the sleeps of one wait, which grow with the time waited so far.
pub(super) struct WaitBackoff<P: Platform> {
    deadline: Option<P::Instant>,
    /// Times at which the waiter began to sleep in steps, and last checked the peers' liveness.
    stepping: Option<(P::Instant, P::Instant)>,
}

/// One sleep of a waiter.
#[derive(Clone, Copy)]
pub(super) struct Sleep {
    /// Maximum duration of the sleep.
    pub(super) limit: Duration,
    /// Whether the waiter checks the peers' liveness after the sleep.
    pub(super) is_check_due: bool,
}

impl<P: Platform> WaitBackoff<P> {
    pub(super) fn until(deadline: Option<P::Instant>) -> Self {
        Self {
            deadline,
            stepping: None,
        }
    }

    /// Returns the next sleep, or `None` if the deadline has passed. The sleep lasts until the
    /// deadline, the next liveness check or, with `in_steps`, the next poll of the event.
    /// `is_orphaned` means that the exporter no longer reports deaths.
    pub(super) fn next(&mut self, in_steps: bool, is_orphaned: bool) -> Option<Sleep> {
        let interval = match is_orphaned {
            true => ORPHAN_INTERVAL,
            false => LIVENESS_INTERVAL,
        };
        let mut sleep = Sleep {
            limit: interval,
            is_check_due: true,
        };
        // Reading the clock would add to the cost of every wake-up.
        if !in_steps && self.deadline.is_none() {
            return Some(sleep);
        }
        let now = P::Instant::now();
        if in_steps {
            let (since, checked) = self.stepping.get_or_insert((now, now));
            let waited = now.saturating_duration_since(*since);
            sleep.limit = (waited / STEPS).clamp(SHORTEST_STEP, LONGEST_STEP);
            sleep.is_check_due = now.saturating_duration_since(*checked) >= interval;
            if sleep.is_check_due {
                *checked = now;
            }
        }
        let Some(deadline) = self.deadline else {
            return Some(sleep);
        };
        let left = deadline.saturating_duration_since(now);
        sleep.limit = sleep.limit.min(left);
        (!left.is_zero()).then_some(sleep)
    }
}
