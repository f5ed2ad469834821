//! Sleeps between looks at something that gives no notice when it changes.

use super::tuning::BACKOFF_STEPS;
use std::time::{Duration, Instant};

/// The length of the sleeps between looks: an eighth of the time since the last progress, within
/// bounds, so that the lateness stays in proportion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    progressed: Instant,
    shortest: Duration,
    longest: Duration,
}

impl Backoff {
    /// Begins with the shortest sleep.
    pub(crate) fn new(shortest: Duration, longest: Duration) -> Self {
        Self {
            progressed: Instant::now(),
            shortest,
            longest,
        }
    }

    /// Takes note of progress: begins with the shortest sleep again.
    pub(crate) fn progress(&mut self) {
        self.progressed = Instant::now();
    }

    /// Returns the length of the next sleep.
    pub(crate) fn delay(&self) -> Duration {
        let part = self.progressed.elapsed() / BACKOFF_STEPS;
        part.clamp(self.shortest, self.longest)
    }
}
