//! How far a list is: events that it signals between its commands.

use crate::hal::level_zero::driver::EventHandle;
use std::collections::VecDeque;

/// When the list signals an event, in its order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(u64);

impl Moment {
    /// When the list has waited for driver's events, before the command of this number itself.
    pub(super) fn start_of(command: u64) -> Self {
        Self(command << 1)
    }

    /// When it is done with the command of this number, and so with all before.
    pub(super) fn end_of(command: u64) -> Self {
        Self(command << 1 | 1)
    }

    pub(super) fn is_start(self) -> bool {
        self.0 & 1 == 0
    }

    /// The command's number.
    pub(super) fn command(self) -> u64 {
        self.0 >> 1
    }
}

/// Those of a list, in its order. Handles alone, since a list may keep them as long as it lives.
#[derive(Default)]
pub(super) struct Marks(VecDeque<(EventHandle, Moment)>);

impl Marks {
    /// The list signals it from now on, after all others.
    pub(super) fn set(&mut self, mark: EventHandle, moment: Moment) {
        debug_assert!(self.0.back().is_none_or(|(_, latest)| *latest < moment));
        self.0.push_back((mark, moment));
    }

    /// The first one that the list comes to.
    pub(super) fn first(&self) -> Option<(EventHandle, Moment)> {
        self.0.front().copied()
    }

    /// The one that the list comes to last, if that is the end of a command.
    pub(super) fn last_end(&self) -> Option<(EventHandle, Moment)> {
        let last = self.0.back().copied();
        last.filter(|(_, moment)| !moment.is_start())
    }

    /// The first command from this one on that has any.
    pub(super) fn next_from(&self, command: u64) -> Option<u64> {
        let index = self.count_before(command);
        self.0.get(index).map(|(_, moment)| moment.command())
    }

    /// Takes the first one out.
    pub(super) fn take_first(&mut self) {
        self.0.pop_front();
    }

    /// Takes out those of all commands before this one.
    pub(super) fn take_before(&mut self, command: u64) -> Vec<EventHandle> {
        let count = self.count_before(command);
        self.0.drain(..count).map(|(mark, _)| mark).collect()
    }

    fn count_before(&self, command: u64) -> usize {
        let start = Moment::start_of(command);
        self.0.partition_point(|(_, moment)| *moment < start)
    }
}
