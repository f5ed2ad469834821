//! The deadline of one open.

use std::cell::OnceCell;
use std::time::{Duration, Instant};

/// The end of one open, however many questions to the exporter it takes: connecting, attaching,
/// fetching.
///
/// The time runs from the first look at it on. Nothing waits before that, and an open of what is
/// here already never looks: the clock would cost half of such an open.
pub(crate) struct Deadline {
    timeout: Duration,
    /// `None`: beyond all time.
    end: OnceCell<Option<Instant>>,
}

impl Deadline {
    #[inline]
    pub(crate) fn after(timeout: Duration) -> Self {
        Self {
            timeout,
            end: OnceCell::new(),
        }
    }

    /// Returns when it is; `None` if never.
    pub(super) fn get(&self) -> Option<Instant> {
        let end = || Instant::now().checked_add(self.timeout);
        *self.end.get_or_init(end)
    }

    /// Returns the time that is left; `None` if there is no end.
    pub(super) fn left(&self) -> Option<Duration> {
        let left = |end: Instant| end.saturating_duration_since(Instant::now());
        self.get().map(left)
    }

    /// Returns whether it is over.
    pub(super) fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}
