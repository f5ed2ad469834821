//! Sleeps between looks at something that tells nobody when it changes.

use std::time::{Duration, Instant};

/// The part of the time since the last progress that one sleep takes. Halved: twice the lateness.
/// Doubled: twice the looks.
const STEPS: u32 = 8;

/// How long to sleep before the next look: an eighth of the time since something last went on, so
/// that the lateness stays in proportion, within bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    progressed: Instant,
    shortest: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) fn new(shortest: Duration, longest: Duration) -> Self {
        Self {
            progressed: Instant::now(),
            shortest,
            longest,
        }
    }

    /// Something went on: begins with the shortest sleep again.
    pub(crate) fn progress(&mut self) {
        self.progressed = Instant::now();
    }

    /// The length of the next sleep.
    pub(crate) fn delay(&self) -> Duration {
        let part = self.progressed.elapsed() / STEPS;
        part.clamp(self.shortest, self.longest)
    }
}
