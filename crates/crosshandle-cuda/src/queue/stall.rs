//! Detects queues that should run but do not move, so that the driver can be woken.

use std::time::{Duration, Instant};

/// Time without progress after which the driver is woken first. A long kernel makes no progress
/// either, and waking the driver for nothing takes a few microseconds. A longer time delays a queue
/// whose driver has missed something by more.
const STALL_SHORTEST: Duration = Duration::from_millis(100);

/// Longest interval between two attempts to wake the driver. Each attempt wakes a thread of the
/// driver.
const STALL_LONGEST: Duration = Duration::from_secs(1);

/// Watches the progress of one queue.
pub(super) struct StallWatch {
    /// The progress at the latest check, and the time since which it is unchanged. `None` if the
    /// queue was idle, or waited for something.
    seen: Option<(u64, Instant)>,
    /// When the driver is woken next, measured from that time.
    next: Duration,
    has_rung: bool,
}

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stall {
    None,
    /// The queue has not moved for this time, and the driver should be woken.
    Ring(Duration),
    /// The queue moves again after the driver was woken.
    Over(Duration),
}

impl StallWatch {
    pub(super) fn new() -> Self {
        Self {
            seen: None,
            next: STALL_SHORTEST,
            has_rung: false,
        }
    }

    /// Checks the queue. `progress` changes with the progress of the queue, and is `None` while the
    /// queue is idle or waits for something that has not happened.
    pub(super) fn check(&mut self, progress: Option<u64>, now: Instant) -> Stall {
        let Some((seen, since)) = self.seen else {
            self.seen = progress.map(|progress| (progress, now));
            return Stall::None;
        };
        let stalled = now.saturating_duration_since(since);
        if progress != Some(seen) {
            let has_rung = self.has_rung;
            *self = Self::new();
            self.seen = progress.map(|progress| (progress, now));
            return match has_rung {
                true => Stall::Over(stalled),
                false => Stall::None,
            };
        }
        if stalled < self.next {
            return Stall::None;
        }
        self.next = stalled + stalled.min(STALL_LONGEST);
        self.has_rung = true;
        Stall::Ring(stalled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_without_progress_rings_less_and_less_often_but_never_stops() {
        let (mut watch, begin) = (StallWatch::new(), Instant::now());
        let mut rings = Vec::new();
        for step in 0..200 {
            let now = begin + step * Duration::from_millis(50);
            if let Stall::Ring(stalled) = watch.check(Some(7), now) {
                rings.push(stalled.as_millis());
            }
        }
        assert_eq!(rings[..5], [100, 200, 400, 800, 1600]);
        assert!(rings[5..].windows(2).all(|two| two[1] - two[0] == 1000));
        assert_eq!(rings.len(), 13);
    }

    #[test]
    fn progress_and_waits_begin_the_time_again() {
        let (mut watch, begin) = (StallWatch::new(), Instant::now());
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        assert_eq!(watch.check(Some(1), at(0)), Stall::None);
        assert_eq!(watch.check(Some(2), at(99)), Stall::None);
        assert_eq!(watch.check(Some(2), at(198)), Stall::None);
        assert_eq!(watch.check(None, at(250)), Stall::None);
        assert_eq!(watch.check(None, at(900)), Stall::None);
        assert_eq!(watch.check(Some(2), at(1000)), Stall::None);
        let rung = Duration::from_millis(100);
        assert_eq!(watch.check(Some(2), at(1100)), Stall::Ring(rung));
        let over = Duration::from_millis(101);
        assert_eq!(watch.check(Some(3), at(1101)), Stall::Over(over));
        assert_eq!(watch.check(Some(3), at(1150)), Stall::None);
    }
}
