//! How far a list is: events that it signals between its commands.

use crate::backend::level_zero::driver::{Core, EventHandle};
use crate::backend::level_zero::pooled::Pooled;
use crate::error::Result;
use crate::os::process;
use std::collections::VecDeque;
use std::sync::Arc;

/// When the list signals an event, in its order. A word, since marks are moved with each command.
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

/// All marks of a list. Handles alone, since they are passed on with each command.
pub(super) struct Marks {
    core: Arc<Core>,
    /// Those in the list, in its order.
    set: VecDeque<(EventHandle, Moment)>,
    /// Those that are free.
    free: Vec<EventHandle>,
}

impl Marks {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        Self {
            core: Arc::clone(core),
            set: VecDeque::new(),
            free: Vec::new(),
        }
    }

    /// One that is not signalled: to be set or given back.
    #[inline]
    pub(super) fn take(&mut self) -> Result<EventHandle> {
        match self.free.pop() {
            Some(mark) => Ok(mark),
            None => Pooled::take_handle(&self.core),
        }
    }

    /// Takes back some that are not signalled, and in no list.
    pub(super) fn give_back(&mut self, marks: impl IntoIterator<Item = EventHandle>) {
        self.free.extend(marks);
    }

    /// The list signals it from now on, after all others.
    #[inline]
    pub(super) fn set(&mut self, mark: EventHandle, moment: Moment) {
        debug_assert!(self.set.back().is_none_or(|(_, latest)| *latest < moment));
        self.set.push_back((mark, moment));
    }

    /// The first one that the list comes to.
    pub(super) fn first(&self) -> Option<(EventHandle, Moment)> {
        self.set.front().copied()
    }

    /// The one that the list comes to last, if that is the end of a command.
    pub(super) fn last_end(&self) -> Option<(EventHandle, Moment)> {
        let last = self.set.back().copied();
        last.filter(|(_, moment)| !moment.is_start())
    }

    /// The first command from this one on that has any.
    pub(super) fn next_from(&self, command: u64) -> Option<u64> {
        let index = self.count_before(command);
        self.set.get(index).map(|(_, moment)| moment.command())
    }

    /// The latest one, if it is this command's.
    pub(super) fn latest_of(&self, command: u64) -> Option<Moment> {
        let (_, moment) = self.set.back()?;
        (moment.command() == command).then_some(*moment)
    }

    /// Takes the first one out.
    pub(super) fn take_first(&mut self) -> Option<EventHandle> {
        self.set.pop_front().map(|(mark, _)| mark)
    }

    /// Takes out those of all commands before this one.
    pub(super) fn take_before(&mut self, command: u64) -> Vec<EventHandle> {
        let count = self.count_before(command);
        self.set.drain(..count).map(|(mark, _)| mark).collect()
    }

    /// Gives up those of this command and all later ones: the list may signal them whenever.
    pub(super) fn lose_from(&mut self, command: u64) {
        let count = self.count_before(command);
        let lost = self.set.split_off(count);
        lost.into_iter().for_each(|(mark, _)| self.lose(mark));
    }

    /// The same for those of all before.
    pub(super) fn lose_before(&mut self, command: u64) {
        let lost = self.take_before(command);
        lost.into_iter().for_each(|mark| self.lose(mark));
    }

    /// Gives up one that was taken.
    pub(super) fn lose(&self, mark: EventHandle) {
        Pooled::lose(&self.core, mark);
    }

    fn count_before(&self, command: u64) -> usize {
        let start = Moment::start_of(command);
        self.set.partition_point(|(_, moment)| *moment < start)
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        for mark in self.free.drain(..) {
            Pooled::return_to_pool(&self.core, mark);
        }
    }
}
