//! The commands in flight on a list, and the list's fences.

use super::command::Command;
use super::fences::{Fences, Position};
use crate::driver::EventHandle;
use crosshandle_ipc::EventCore;
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct InFlight {
    pub(super) commands: VecDeque<Command>,
    /// The number of the first command in flight, or of the next command if none is in flight.
    pub(super) first: u64,
    pub(super) fences: Fences,
    /// The number of commands with timestamps.
    timed: usize,
    /// The number of commands that make the list wait for events of the driver.
    waiting: usize,
    /// Fences that were appended after their commands had ended. They are not known to be
    /// signalled.
    pub(super) late_fences: Vec<EventHandle>,
    /// Events of ended commands whose mirrors the list signals after the commands' fences. The list
    /// still uses them.
    pub(super) retained_events: Vec<Arc<EventCore>>,
    /// Whether the list may contain a part of a command for whose end there is no fence.
    pub(super) is_unsure: bool,
}

impl InFlight {
    pub(super) fn is_any_timed(&self) -> bool {
        self.timed > 0
    }

    pub(super) fn is_any_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Adds the next command.
    pub(super) fn push(&mut self, command: Command) {
        self.timed += usize::from(command.is_timed);
        self.waiting += usize::from(command.waits_on_device());
        self.commands.push_back(command);
    }

    pub(super) fn add_fence(&mut self, fence: EventHandle, position: Position) {
        match position.command() < self.first {
            true => self.late_fences.push(fence),
            false => self.fences.push(fence, position),
        }
    }

    /// Moves the first `count` commands into `taken`.
    pub(super) fn take_first(&mut self, count: usize, taken: &mut VecDeque<Command>) {
        self.first += count as u64;
        for command in self.commands.drain(..count) {
            self.timed -= usize::from(command.is_timed);
            self.waiting -= usize::from(command.waits_on_device());
            taken.push_back(command);
        }
    }

    /// Takes all commands, so that they can be appended to another list under the same numbers.
    pub(super) fn take_all(&mut self) -> VecDeque<Command> {
        (self.timed, self.waiting) = (0, 0);
        std::mem::take(&mut self.commands)
    }

    /// Returns the number of commands that have ended once the command at `index` has ended. They
    /// are counted from the first one, and include later commands that need no more of the list.
    pub(super) fn ended_with(&self, index: usize) -> usize {
        index + 1 + self.ended_from(index + 1)
    }

    /// Returns the number of commands from `index` on that end as soon as all earlier commands have
    /// ended. The count stops before the next command with a fence.
    pub(super) fn ended_from(&self, index: usize) -> usize {
        let from = self.first + index as u64;
        let end = match self.fences.next_command_from(from) {
            Some(fenced) => (fenced - self.first) as usize,
            None => self.commands.len(),
        };
        let later = self.commands.iter().take(end).skip(index);
        later
            .take_while(|command| command.ends_with_previous)
            .count()
    }

    /// Returns the index of the last command, up to number `last`, that may end together with the
    /// one at `index`. Commands with timestamps end one by one.
    pub(super) fn last_ending_with(&self, index: usize, last: u64) -> usize {
        let last = (last - self.first) as usize;
        let mut together = self.commands.range(index..=last);
        match !self.is_any_timed() || together.all(|command| !command.is_timed) {
            true => last,
            false => index,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::InFlight;
    use crate::driver::Handle;
    use crate::queue::command::Command;
    use crate::queue::fences::Position;
    use std::collections::VecDeque;
    use std::ptr;

    fn with_commands(count: usize) -> InFlight {
        let mut in_flight = InFlight::default();
        (0..count).for_each(|_| in_flight.push(Command::default()));
        in_flight
    }

    fn first_fenced(in_flight: &InFlight) -> Option<u64> {
        let first = in_flight.fences.first();
        first.map(|(_, position)| position.command())
    }

    #[test]
    fn a_fence_of_an_ended_command_is_late() {
        let mut in_flight = with_commands(2);
        in_flight.take_first(1, &mut VecDeque::new());
        let fence = Handle(ptr::null_mut());
        in_flight.add_fence(fence, Position::end_of(0));
        in_flight.add_fence(fence, Position::end_of(1));
        assert_eq!((in_flight.first, in_flight.late_fences.len()), (1, 1));
        assert_eq!(first_fenced(&in_flight), Some(1));
    }

    #[test]
    fn commands_without_work_end_with_the_one_before_up_to_the_next_fence() {
        let mut in_flight = with_commands(5);
        for index in [1, 2, 3] {
            in_flight.commands[index].ends_with_previous = true;
        }
        assert_eq!(in_flight.ended_from(0), 0);
        assert_eq!(in_flight.ended_with(0), 4);
        let fence = Handle(ptr::null_mut());
        in_flight.add_fence(fence, Position::start_of(2));
        assert_eq!(in_flight.ended_with(0), 2);
        in_flight.fences.remove_first();
        assert_eq!(in_flight.ended_with(0), 4);
    }
}
