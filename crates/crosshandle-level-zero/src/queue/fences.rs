//! Fences: events that a list signals between its commands, so that the host learns how far the
//! list has run.

use crate::driver::EventHandle;
use std::collections::VecDeque;

/// The position of a fence among a list's commands. Positions have the order in which the list
/// reaches them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Position(u64);

impl Position {
    /// Returns the position before a command's work, after the driver events that it waits for.
    pub(super) fn start_of(command: u64) -> Self {
        Self(command << 1)
    }

    /// Returns the position after a command, and so after all earlier commands.
    pub(super) fn end_of(command: u64) -> Self {
        Self(command << 1 | 1)
    }

    pub(super) fn is_start(self) -> bool {
        self.0 & 1 == 0
    }

    /// Returns the command's number.
    pub(super) fn command(self) -> u64 {
        self.0 >> 1
    }
}

/// The fences of a list that have not been seen signalled, in the list's order. Only handles are
/// stored, because an abandoned list keeps its fences.
#[derive(Default)]
pub(super) struct Fences(VecDeque<(EventHandle, Position)>);

impl Fences {
    /// Adds a fence after all others.
    pub(super) fn push(&mut self, fence: EventHandle, position: Position) {
        debug_assert!(self.0.back().is_none_or(|(_, last)| *last < position));
        self.0.push_back((fence, position));
    }

    /// Returns the fence that the list reaches first.
    pub(super) fn first(&self) -> Option<(EventHandle, Position)> {
        self.0.front().copied()
    }

    /// Returns the fence that the list reaches last, if it is at the end of a command.
    pub(super) fn last_end(&self) -> Option<(EventHandle, Position)> {
        let last = self.0.back().copied();
        last.filter(|(_, position)| !position.is_start())
    }

    /// Returns the first command from `command` on that has a fence.
    pub(super) fn next_command_from(&self, command: u64) -> Option<u64> {
        let index = self.count_before(command);
        self.0.get(index).map(|(_, position)| position.command())
    }

    pub(super) fn remove_first(&mut self) {
        self.0.pop_front();
    }

    /// Takes the fences of all commands before `command`.
    pub(super) fn take_before(&mut self, command: u64) -> Vec<EventHandle> {
        let count = self.count_before(command);
        self.0.drain(..count).map(|(fence, _)| fence).collect()
    }

    fn count_before(&self, command: u64) -> usize {
        let start = Position::start_of(command);
        self.0.partition_point(|(_, position)| *position < start)
    }
}
