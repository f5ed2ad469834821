//! The times at which the exchange thread resumes or calls sources.

use super::{Paused, SOURCE_REST};
use rustix::event::Timespec;
use std::collections::VecDeque;
use std::time::Instant;

/// The sources that rest, and the deadlines of sources.
#[derive(Default)]
pub(super) struct Timers {
    /// Resting sources with the end of their rest, in ascending order of time.
    resting: VecDeque<(Instant, Paused)>,
    /// The deadlines of sources. There are only few at a time.
    deadlines: Vec<(u64, Instant)>,
}

impl Timers {
    pub(super) fn rest(&mut self, source: Paused) {
        self.resting
            .push_back((Instant::now() + SOURCE_REST, source));
    }

    pub(super) fn set_deadline(&mut self, source: u64, deadline: Option<Instant>) {
        self.deadlines.retain(|(other, _)| *other != source);
        self.deadlines.extend(deadline.map(|end| (source, end)));
    }

    /// Takes out a source whose deadline has passed.
    pub(super) fn take_late(&mut self, now: Instant) -> Option<u64> {
        let place = self.deadlines.iter().position(|(_, end)| *end <= now)?;
        Some(self.deadlines.swap_remove(place).0)
    }

    /// Resumes the sources whose rest is over. Returns the time until the next rest or deadline
    /// ends.
    pub(super) fn next(&mut self, now: Instant) -> Option<Timespec> {
        while self.resting.front().is_some_and(|(end, _)| *end <= now) {
            self.resting.pop_front();
        }
        let resting = self.resting.front().map(|(end, _)| *end);
        let late = self.deadlines.iter().map(|(_, end)| *end).min();
        let next = [resting, late].into_iter().flatten().min()?;
        next.saturating_duration_since(now).try_into().ok()
    }
}
