//! What those who submit know of a lane, under its lock.

use super::handover::Giver;
use super::marks::Moment;
use crate::error::Error;
use crate::hal::level_zero::driver::{EventHandle, List};
use crate::hal::level_zero::entry::Entry;
use std::collections::VecDeque;
use std::thread::JoinHandle;

/// How the thread passes the time.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Rest {
    /// It is busy, or waits for the device.
    #[default]
    None,
    /// It looks again after a while.
    Nap,
    /// Until it is woken.
    Sleep,
}

pub(super) struct Front {
    pub(super) tip: Tip,
    /// Commands that are not in the list yet.
    pub(super) held: VecDeque<Entry>,
    /// Where the others go.
    pub(super) commands: Giver<Entry>,
    pub(super) rest: Rest,
    /// Commands go elsewhere now.
    pub(super) is_shut: bool,
    pub(super) thread: Option<JoinHandle<()>>,
}

/// The list, and what is to be known of its end to append more.
pub(super) struct Tip {
    /// Made with the first command, ended by the thread.
    pub(super) list: Option<List>,
    /// Commands that are in the list, or over: with those that are held, all that were submitted.
    pub(super) appended: u64,
    marks: Giver<(EventHandle, Moment)>,
    /// Marks that the list has, and the thread has not been told of.
    fresh: Vec<(EventHandle, Moment)>,
    /// The latest mark, and the one before.
    pub(super) latest: Option<Moment>,
    pub(super) earlier: Option<Moment>,
    /// Commands in the list since then.
    pub(super) unmarked: u32,
    /// Somebody may wait for one of them.
    pub(super) is_awaited: bool,
    /// One of them waits for driver's events.
    pub(super) has_waits: bool,
}

impl Front {
    pub(super) fn new(commands: Giver<Entry>, marks: Giver<(EventHandle, Moment)>) -> Self {
        Self {
            tip: Tip {
                list: None,
                appended: 0,
                marks,
                fresh: Vec::new(),
                latest: None,
                earlier: None,
                unmarked: 0,
                is_awaited: false,
                has_waits: false,
            },
            held: VecDeque::new(),
            commands,
            rest: Rest::None,
            is_shut: false,
            thread: None,
        }
    }

    /// Whether a command is not in the list yet.
    pub(super) fn is_held(&self) -> bool {
        !self.held.is_empty()
    }
}

impl Tip {
    /// The list signals a mark after all that it has.
    pub(super) fn set_mark(&mut self, mark: EventHandle, moment: Moment) {
        debug_assert!(self.latest.is_none_or(|latest| latest < moment));
        self.fresh.push((mark, moment));
        let latest = self.latest;
        self.set_marked(Some(moment));
        self.earlier = latest;
    }

    /// What the list has is over, or has this mark after it.
    pub(super) fn set_marked(&mut self, moment: Option<Moment>) {
        (self.latest, self.earlier) = (moment, None);
        (self.unmarked, self.is_awaited, self.has_waits) = (0, false, false);
    }

    /// Whether the device has stopped, as an error says, and nothing of the list is executed any more.
    pub(super) fn is_lost(&self, error: &Error) -> bool {
        let list = self.list.as_ref();
        list.is_some_and(|list| list.is_lost(error))
    }

    /// The latest mark, if it is of the command that is being appended.
    pub(super) fn latest_of_next(&self) -> Option<Moment> {
        let next = self.appended;
        self.latest.filter(|latest| latest.command() == next)
    }

    /// Tells the thread of marks. To be done before it gets the command that they come with.
    #[inline(always)]
    pub(super) fn tell_marks(&mut self) {
        if self.has_untold_marks() {
            for mark in self.fresh.drain(..) {
                self.marks.give(mark);
            }
        }
    }

    /// Whether there are any of which the thread was not told.
    #[inline(always)]
    pub(super) fn has_untold_marks(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Takes back the marks of this and later commands, of which the thread was not told.
    pub(super) fn take_back(&mut self, command: u64) -> impl Iterator<Item = EventHandle> {
        let is_before = |(_, moment): &(EventHandle, Moment)| moment.command() < command;
        let back = self.fresh.split_off(self.fresh.partition_point(is_before));
        (self.latest, self.earlier) = (self.fresh.last().map(|(_, latest)| *latest), None);
        back.into_iter().map(|(mark, _)| mark)
    }

    pub(super) fn marks(&mut self) -> &mut Giver<(EventHandle, Moment)> {
        &mut self.marks
    }
}
