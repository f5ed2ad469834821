//! The latest moment at which a blocking call returns.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// The latest moment at which a blocking call returns. A deadline may also never expire.
///
/// A call with a timeout creates one deadline and passes it to every step that may block, so all
/// steps together take no longer than the timeout. No operation overflows or panics. A timeout that
/// is longer than the clock can count never expires.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub struct Deadline {
    /// The moment. `None` means that the deadline never expires.
    end: Option<Instant>,
}

impl Deadline {
    /// A deadline that never expires.
    pub const NEVER: Self = Self { end: None };

    /// Returns the deadline that expires after `timeout` from now.
    #[inline]
    pub fn after(timeout: Duration) -> Self {
        Self {
            end: Instant::now().checked_add(timeout),
        }
    }

    /// Returns the deadline of an optional timeout. With `None` it never expires.
    #[inline]
    pub fn after_optional(timeout: Option<Duration>) -> Self {
        timeout.map_or(Self::NEVER, Self::after)
    }

    /// Returns a deadline that has already expired. A call with it does only what it can do without
    /// blocking.
    #[inline]
    pub fn expired() -> Self {
        // A reading of the clock would take longer than the rest of some calls.
        static PAST: OnceLock<Instant> = OnceLock::new();
        Self::at(*PAST.get_or_init(Instant::now))
    }

    /// Returns the deadline that expires at the moment `end`.
    #[inline]
    pub fn at(end: Instant) -> Self {
        Self { end: Some(end) }
    }

    /// Returns the moment at which the deadline expires; `None` if it never expires.
    #[inline]
    pub fn instant(self) -> Option<Instant> {
        self.end
    }

    /// Returns the remaining time, which is zero after the deadline; `None` if it never expires.
    #[inline]
    pub fn remaining(self) -> Option<Duration> {
        let left = |end: Instant| end.saturating_duration_since(Instant::now());
        self.end.map(left)
    }

    /// Returns the remaining time, or [`Duration::MAX`] if the deadline never expires.
    #[inline]
    pub fn timeout(self) -> Duration {
        self.remaining().unwrap_or(Duration::MAX)
    }

    /// Returns the remaining time, but at most `most`. This is for steps that wait in intervals.
    #[inline]
    pub fn remaining_within(self, most: Duration) -> Duration {
        self.remaining().map_or(most, |left| left.min(most))
    }

    /// Returns whether the deadline has passed.
    #[inline]
    pub fn is_over(self) -> bool {
        self.end.is_some_and(|end| end <= Instant::now())
    }

    /// Returns the earlier of two deadlines.
    #[inline]
    pub fn min(self, other: Self) -> Self {
        match (self.end, other.end) {
            (Some(end), Some(others)) => Self::at(end.min(others)),
            _ => Self {
                end: self.end.or(other.end),
            },
        }
    }

    /// Returns a deadline that expires `time` later than this one.
    #[inline]
    pub fn postponed(self, time: Duration) -> Self {
        Self {
            end: self.end.and_then(|end| end.checked_add(time)),
        }
    }

    /// Sleeps for `pause`, but not beyond the deadline. Returns whether time remains.
    pub fn sleep(self, pause: Duration) -> bool {
        thread::sleep(self.remaining_within(pause));
        !self.is_over()
    }
}

impl From<Duration> for Deadline {
    fn from(timeout: Duration) -> Self {
        Self::after(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_timeouts_never_expire() {
        for timeout in [Duration::MAX, Duration::from_secs(u64::MAX)] {
            let deadline = Deadline::after(timeout);
            assert_eq!(deadline, Deadline::NEVER);
            assert_eq!((deadline.remaining(), deadline.is_over()), (None, false));
            assert_eq!(deadline.postponed(Duration::MAX), Deadline::NEVER);
        }
        let soon = Deadline::after(Duration::from_secs(1));
        assert_eq!(soon.postponed(Duration::MAX), Deadline::NEVER);
        assert_eq!(Deadline::after_optional(None), Deadline::NEVER);
    }

    #[test]
    fn an_expired_deadline_has_no_time_left() {
        let expired = Deadline::expired();
        assert_eq!(
            (expired.remaining(), expired.is_over()),
            (Some(Duration::ZERO), true)
        );
        assert!(!expired.sleep(Duration::MAX));
        assert_eq!(expired.remaining_within(Duration::MAX), Duration::ZERO);
    }

    #[test]
    fn the_earlier_one_wins() {
        let (expired, never) = (Deadline::expired(), Deadline::NEVER);
        let later = expired.postponed(Duration::from_secs(1));
        assert_eq!((expired.min(later), later.min(expired)), (expired, expired));
        assert_eq!((never.min(later), later.min(never)), (later, later));
        assert_eq!(never.min(never), never);
        assert_eq!(never.remaining_within(Duration::ZERO), Duration::ZERO);
    }
}
