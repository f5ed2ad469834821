//! Pauses between repeated requests to a busy holder.

use crosshandle_os::process;
use crosshandle_types::sync::Deadline;
use std::time::Duration;

/// A pause that doubles with each attempt. Its length is randomised, so that programs that were put
/// off together do not all return at the same time.
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

    /// Sleeps until the next attempt is due, or until `deadline`.
    pub(super) fn wait(&mut self, deadline: Deadline) {
        let mut byte = [0x80];
        // If no random numbers are available, all pauses have the same length.
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
