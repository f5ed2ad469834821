//! A rate limit for messages of one kind, so that many similar events do not flood a log.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Maximum number of messages of one kind per second. Further messages are only counted. Larger
/// values name more of many peers that die at once. Smaller values shorten a flood of refusals.
const MESSAGES_A_SECOND: u32 = 16;

/// Limits the messages of one kind per second. Takes no lock.
pub struct Limit {
    /// The latest second in the upper 32 bits, and the number of messages admitted in it in the
    /// lower 32 bits.
    window: AtomicU64,
    suppressed: AtomicU64,
}

const HALF: u32 = 32;

impl Limit {
    pub const fn new() -> Self {
        Self {
            window: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
        }
    }

    /// Admits a message, if the limit allows it. Returns the number of messages suppressed since
    /// the last admitted one; `None` if this message must be suppressed.
    pub fn admit(&self) -> Option<u64> {
        static START: OnceLock<Instant> = OnceLock::new();
        // Seconds count from 1, because an unused limit contains 0.
        self.admit_in(START.get_or_init(Instant::now).elapsed().as_secs() + 1)
    }

    fn admit_in(&self, second: u64) -> Option<u64> {
        let admitted = |window: u64| {
            let (latest, count) = (window >> HALF, window as u32);
            match latest < second {
                true => Some((second << HALF) | 1),
                false => (count < MESSAGES_A_SECOND).then_some(window + 1),
            }
        };
        let moved = self
            .window
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, admitted);
        if moved.is_err() {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.suppressed.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_off_and_counted() {
        let limit = Limit::new();
        let burst = u64::from(MESSAGES_A_SECOND);
        let let_through = |second| {
            let all = (0..10 * burst).filter_map(|_| limit.admit_in(second));
            all.collect::<Vec<_>>()
        };
        assert_eq!(let_through(1), vec![0; burst as usize]);
        let second = let_through(2);
        assert_eq!((second[0], second[1]), (9 * burst, 0));
        assert_eq!(second.len() as u64, burst);
        assert_eq!(limit.admit_in(1), None, "time goes back for nobody");
        assert_eq!(limit.admit_in(9), Some(9 * burst + 1));
    }
}
