//! Pauses between attempts at what a busy holder puts off.

use crate::os::process;
use crate::sync::Deadline;
use std::time::Duration;

/// Pauses of growing length. Their lengths vary, so that programs which were put off together do not
/// come back together.
pub(super) struct Pause {
    next: Duration,
    longest: Duration,
}

impl Pause {
    pub(super) fn new(shortest: Duration, longest: Duration) -> Self {
        Self {
            next: shortest,
            longest,
        }
    }

    /// Sleeps until it is time for the next attempt, or until `deadline`.
    pub(super) fn wait(&mut self, deadline: Deadline) {
        let mut byte = [0x80];
        // Without random numbers pauses are alike.
        let _ = process::random(&mut byte);
        let length = self.next * (128 + u32::from(byte[0])) / 256;
        deadline.sleep(length);
        self.next = (self.next * 2).min(self.longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_greatest_length_and_end_at_the_deadline() {
        let mut pause = Pause::new(Duration::from_micros(100), Duration::from_micros(300));
        for expected in [200, 300, 300] {
            pause.wait(Deadline::NEVER);
            assert_eq!(pause.next, Duration::from_micros(expected));
        }
        let mut pause = Pause::new(Duration::from_secs(3600), Duration::from_secs(3600));
        let begin = std::time::Instant::now();
        pause.wait(Deadline::after(Duration::from_millis(1)));
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
}
