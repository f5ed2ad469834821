//! The deadline of one open.

use crosshandle_os::socket::interrupt;
use crosshandle_types::sync::Deadline;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The deadline of one open, which covers all its requests to the exporter: connecting, attaching
/// and fetching.
///
/// The time starts at the first call of [`get`](Self::get). An open without a request never calls
/// it, and so never reads the clock, which would double the duration of such an open. Work of this
/// process, such as mapping received memory, does not count ([`excluding`](Self::excluding)).
pub struct OpenDeadline {
    timeout: Duration,
    /// `None` before the first call of `get`.
    end: Cell<Option<Deadline>>,
}

impl OpenDeadline {
    #[inline]
    pub fn after(timeout: Duration) -> Self {
        Self {
            timeout,
            end: Cell::new(None),
        }
    }

    /// Returns the deadline. The first call starts the time.
    pub fn get(&self) -> Deadline {
        self.end.get().unwrap_or_else(|| {
            let end = interrupt::deadline(Deadline::after(self.timeout));
            self.end.set(Some(end));
            end
        })
    }

    /// Calls `work`, and postpones the deadline by its duration.
    pub fn excluding<R>(&self, work: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        let result = work();
        if let Some(end) = self.end.get() {
            self.end.set(Some(end.postponed(began.elapsed())));
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_work_does_not_count() {
        let deadline = OpenDeadline::after(Duration::from_secs(3600));
        let before = deadline.get().instant().expect("an end");
        let took = deadline.excluding(|| {
            let began = Instant::now();
            while began.elapsed().is_zero() {}
            began.elapsed()
        });
        assert!(deadline.get().instant().expect("an end") >= before + took);
        let never = OpenDeadline::after(Duration::MAX);
        assert_eq!(never.get(), Deadline::NEVER);
        assert_eq!(never.excluding(|| never.get()), Deadline::NEVER);
    }
}
