//! How long to sleep between two looks.

use crate::platform::Instant;
use std::time::Duration;

/// The longest sleep before a waiter makes sure that the process it waits for still lives.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(40);
/// A device wakes nobody, so who waits for one sleeps in steps of this part of the time waited
/// so far: that much later it may wake up.
const STEPS: u32 = 8;
/// Bounds of a step: about what a sleep takes at least, and less than 1 % of a core.
const SHORTEST_STEP: Duration = Duration::from_micros(20);
const LONGEST_STEP: Duration = Duration::from_millis(1);

/// The sleeps of one wait.
pub(super) struct Naps {
    deadline: Option<Instant>,
    /// When sleeping in steps began, and when the peers were looked at last.
    stepping: Option<(Instant, Instant)>,
}

/// One sleep.
#[derive(Clone, Copy)]
pub(super) struct Nap {
    pub(super) limit: Duration,
    /// Whether to look at the peers after it.
    pub(super) is_check_due: bool,
}

impl Naps {
    pub(super) fn until(deadline: Option<Instant>) -> Self {
        Self {
            deadline,
            stepping: None,
        }
    }

    /// How long to sleep now: until the deadline, the next look at the peers, or with `in_steps`
    /// the next look at the event. `None`: the deadline has passed.
    pub(super) fn next(&mut self, in_steps: bool) -> Option<Nap> {
        let mut nap = Nap {
            limit: LIVENESS_INTERVAL,
            is_check_due: true,
        };
        // Reading the clock is part of every wake-up's cost.
        if !in_steps && self.deadline.is_none() {
            return Some(nap);
        }
        let now = Instant::now();
        if in_steps {
            let (since, checked) = self.stepping.get_or_insert((now, now));
            let waited = now.saturating_duration_since(*since);
            nap.limit = (waited / STEPS).clamp(SHORTEST_STEP, LONGEST_STEP);
            nap.is_check_due = now.saturating_duration_since(*checked) >= LIVENESS_INTERVAL;
            if nap.is_check_due {
                *checked = now;
            }
        }
        let Some(deadline) = self.deadline else {
            return Some(nap);
        };
        let left = deadline.saturating_duration_since(now);
        nap.limit = nap.limit.min(left);
        (!left.is_zero()).then_some(nap)
    }
}
