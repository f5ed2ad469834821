//! Sleep intervals for polling a state that sends no notification when it changes.

use std::time::{Duration, Instant};

/// Ratio of the time since the last progress to the next sleep of a
/// [`Backoff`](super::backoff::Backoff).
const BACKOFF_STEPS: u32 = 8;

/// Computes the interval between polls. It is 1/8 of the time since the last progress, within
/// bounds, so that the delay stays proportional to the wait.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    progressed: Instant,
    shortest: Duration,
    longest: Duration,
}

impl Backoff {
    /// Creates a backoff that begins with the shortest sleep.
    pub fn new(shortest: Duration, longest: Duration) -> Self {
        Self {
            progressed: Instant::now(),
            shortest,
            longest,
        }
    }

    /// Records progress, so that the next sleep is again the shortest one.
    pub fn progress(&mut self) {
        self.progressed = Instant::now();
    }

    /// Returns the length of the next sleep.
    pub fn delay(&self) -> Duration {
        let part = self.progressed.elapsed() / BACKOFF_STEPS;
        part.clamp(self.shortest, self.longest)
    }
}
