//! What is known of the commands that a list has, and of its marks, as far as they are not over.

use super::front::Front;
use super::handover::Taker;
use super::marks::{Marks, Moment};
use crate::hal::level_zero::driver::EventHandle;
use crate::hal::level_zero::entry::Entry;
use crate::ipc::EventCore;
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) struct Running {
    commands: Taker<Entry>,
    /// Those of a command are there when it is.
    told: Taker<(EventHandle, Moment)>,
    pub(super) entries: VecDeque<Entry>,
    /// The number of the first of them, or of the next one.
    pub(super) first: u64,
    pub(super) marks: Marks,
    /// How many of the commands have timestamps, and how many let the list wait for driver's events.
    timed: usize,
    waiting: usize,
    /// Marks of which it was told when their command was over: not known to be signalled.
    pub(super) late: Vec<EventHandle>,
    /// Events of commands that are over, which the list still has.
    pub(super) lingering: Vec<Arc<EventCore>>,
    /// The list may have a part of a command that nobody will see done.
    pub(super) is_unsure: bool,
}

impl Running {
    pub(super) fn new(commands: Taker<Entry>, told: Taker<(EventHandle, Moment)>) -> Self {
        Self {
            commands,
            told,
            entries: VecDeque::new(),
            first: 0,
            marks: Marks::default(),
            late: Vec::new(),
            timed: 0,
            waiting: 0,
            lingering: Vec::new(),
            is_unsure: false,
        }
    }

    /// The number of the command that comes after these.
    pub(super) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Whether any of them has timestamps.
    pub(super) fn is_any_timed(&self) -> bool {
        self.timed > 0
    }

    /// Whether the list waits for driver's events before any of them.
    pub(super) fn is_any_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Takes in what is in the list, as far as those who submit need not be asked: `false` if they
    /// have to be.
    pub(super) fn receive(&mut self) -> bool {
        while let Some(entry) = self.commands.take_if(|_| true) {
            self.push(entry);
        }
        let end = self.end();
        while let Some((mark, moment)) = self.told.take_if(|(_, moment)| moment.command() < end) {
            self.set(mark, moment);
        }
        !self.commands.has_more() && !self.told.has_more()
    }

    /// Takes in all that is in the list.
    pub(super) fn receive_all(&mut self, front: &mut Front) {
        while let Some(entry) = self.commands.take_from(&mut front.commands) {
            self.push(entry);
        }
        while let Some((mark, moment)) = self.told.take_from(front.tip.marks()) {
            self.set(mark, moment);
        }
    }

    fn set(&mut self, mark: EventHandle, moment: Moment) {
        match moment.command() < self.first {
            true => self.late.push(mark),
            false => self.marks.set(mark, moment),
        }
    }

    /// Adds one that is about to end.
    pub(super) fn push(&mut self, entry: Entry) {
        self.timed += usize::from(entry.is_timed);
        self.waiting += usize::from(entry.waits_on_device());
        self.entries.push_back(entry);
    }

    /// Moves the first ones to an empty queue.
    pub(super) fn take_first(&mut self, count: usize, taken: &mut VecDeque<Entry>) {
        debug_assert!(taken.is_empty());
        if count == self.entries.len() {
            std::mem::swap(&mut self.entries, taken);
        } else {
            taken.extend(self.entries.drain(..count));
        }
        self.first += count as u64;
        for entry in &*taken {
            self.timed -= usize::from(entry.is_timed);
            self.waiting -= usize::from(entry.waits_on_device());
        }
    }

    /// Takes all of them out, to be appended to another list.
    pub(super) fn take_all(&mut self) -> VecDeque<Entry> {
        (self.timed, self.waiting) = (0, 0);
        std::mem::take(&mut self.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::Running;
    use crate::hal::level_zero::driver::{EventHandle, Handle};
    use crate::hal::level_zero::entry::Entry;
    use crate::hal::level_zero::lane::handover::{Giver, create};
    use crate::hal::level_zero::lane::marks::Moment;
    use std::collections::VecDeque;
    use std::ptr;

    type Told = Giver<(EventHandle, Moment)>;

    fn running() -> (Giver<Entry>, Told, Running) {
        let (commands, in_list) = create(4);
        let (marks, told) = create(4);
        (commands, marks, Running::new(in_list, told))
    }

    fn tell(marks: &mut Told, moment: Moment) {
        marks.give((Handle(ptr::null_mut()), moment));
    }

    #[test]
    fn a_mark_is_seen_with_its_command() {
        let (mut commands, mut marks, mut running) = running();
        tell(&mut marks, Moment::end_of(0));
        assert!(running.receive());
        assert!(running.marks.first().is_none());
        commands.give(Entry::default());
        assert!(running.receive());
        let first = running.marks.first().map(|(_, moment)| moment.command());
        assert_eq!((first, running.end()), (Some(0), 1));
    }

    #[test]
    fn a_mark_of_what_is_over_is_late() {
        let (mut commands, mut marks, mut running) = running();
        for _ in 0..2 {
            commands.give(Entry::default());
        }
        assert!(running.receive());
        running.take_first(1, &mut VecDeque::new());
        tell(&mut marks, Moment::end_of(0));
        tell(&mut marks, Moment::end_of(1));
        assert!(running.receive());
        assert_eq!((running.first, running.late.len()), (1, 1));
        let first = running.marks.first().map(|(_, moment)| moment.command());
        assert_eq!(first, Some(1));
    }
}
