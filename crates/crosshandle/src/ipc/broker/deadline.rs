//! The deadline of one open.

use crate::os::socket::interrupt;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The end of one open, however many questions to the exporter it takes: connecting, attaching,
/// fetching.
///
/// The time runs from the first look at it on. Nothing waits before that, and an open of what is
/// here already never looks: the clock would cost half of such an open. What this process does itself
/// meanwhile, such as mapping what has come, does not count ([`excluding`](Deadline::excluding)).
pub(crate) struct Deadline {
    timeout: Duration,
    /// `None` before the first look; then `None` inside: beyond all time.
    end: Cell<Option<Option<Instant>>>,
}

impl Deadline {
    #[inline]
    pub(crate) fn after(timeout: Duration) -> Self {
        Self {
            timeout,
            end: Cell::new(None),
        }
    }

    /// Returns when it is; `None` if never.
    pub(crate) fn get(&self) -> Option<Instant> {
        match self.end.get() {
            Some(end) => end,
            None => {
                let end = interrupt::deadline(Instant::now().checked_add(self.timeout));
                self.end.set(Some(end));
                end
            }
        }
    }

    /// Calls `work`, and puts the end off by the time that it takes.
    pub(crate) fn excluding<R>(&self, work: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        let result = work();
        if let Some(Some(end)) = self.end.get() {
            self.end.set(Some(end.checked_add(began.elapsed())));
        }
        result
    }

    /// Returns the time that is left; `None` if there is no end.
    pub(crate) fn left(&self) -> Option<Duration> {
        let left = |end: Instant| end.saturating_duration_since(Instant::now());
        self.get().map(left)
    }

    /// Returns whether it is over.
    pub(crate) fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_work_does_not_count() {
        let deadline = Deadline::after(Duration::from_secs(3600));
        let before = deadline.get().expect("an end");
        let took = deadline.excluding(|| {
            let began = Instant::now();
            while began.elapsed().is_zero() {}
            began.elapsed()
        });
        assert!(deadline.get().expect("an end") >= before + took);
        let never = Deadline::after(Duration::MAX);
        assert_eq!((never.get(), never.excluding(|| never.get())), (None, None));
    }
}
