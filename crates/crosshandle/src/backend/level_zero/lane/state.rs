//! What is known of a lane's list and commands, under its lock.

use super::marks::{Marks, Moment};
use crate::backend::level_zero::driver::{Core, EventHandle, List};
use crate::backend::level_zero::entry::Entry;
use crate::os::prefetch;
use crate::sharing::EventCore;
use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;
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

pub(super) struct State {
    /// Made with the first command, ended by the thread.
    pub(super) list: Option<List>,
    pub(super) entries: VecDeque<Entry>,
    /// So many of the first entries are in the list.
    pub(super) appended: usize,
    /// So many commands that are not over have timestamps, and so many let the list wait for
    /// driver's events. Perhaps fewer by now.
    pub(super) timed: usize,
    pub(super) waiting: usize,
    /// Commands in the list since the latest mark.
    pub(super) unmarked: u32,
    /// Somebody may wait for one of them.
    pub(super) is_awaited: bool,
    /// One of them waits for driver's events.
    pub(super) has_waits: bool,
    pub(super) marks: Marks,
    /// Events of commands that are over, which the list still has.
    pub(super) lingering: Vec<Arc<EventCore>>,
    /// The list may have a part of a command that nobody will see done.
    pub(super) is_unsure: bool,
    /// Commands that were submitted.
    pub(super) submitted: u64,
    /// Up to here, the thread is to look at commands now.
    pub(super) pressing: u64,
    pub(super) rest: Rest,
    pub(super) is_closed: bool,
    /// Commands go elsewhere now.
    pub(super) is_shut: bool,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl State {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        Self {
            list: None,
            entries: VecDeque::new(),
            appended: 0,
            timed: 0,
            waiting: 0,
            unmarked: 0,
            is_awaited: false,
            has_waits: false,
            marks: Marks::new(core),
            lingering: Vec::new(),
            is_unsure: false,
            submitted: 0,
            pressing: 0,
            rest: Rest::None,
            is_closed: false,
            is_shut: false,
            thread: None,
        }
    }

    /// Has the CPU fetch the place of the next command: the thread's had it last. A guess, which is
    /// wrong where the places begin anew.
    pub(super) fn prefetch_place(&self) {
        if let Some(last) = self.entries.back() {
            prefetch::for_writing(ptr::from_ref(last).wrapping_add(1));
        }
    }

    /// The number of the first command.
    pub(super) fn first(&self) -> u64 {
        self.submitted - self.entries.len() as u64
    }

    /// The number of the command that comes after those in the list. It may be about to be added.
    pub(super) fn next_number(&self) -> u64 {
        self.first() + self.appended as u64
    }

    /// Whether a command is not in the list yet.
    pub(super) fn is_held(&self) -> bool {
        self.appended < self.entries.len()
    }

    /// The list signals a mark after all that it has.
    pub(super) fn set_mark(&mut self, mark: EventHandle, moment: Moment) {
        self.marks.set(mark, moment);
        self.set_marked();
    }

    /// What the list has is over, or has a mark after it.
    pub(super) fn set_marked(&mut self) {
        (self.unmarked, self.is_awaited, self.has_waits) = (0, false, false);
    }
}
