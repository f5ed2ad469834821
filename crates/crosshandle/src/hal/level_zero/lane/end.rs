//! How commands of a lane end.

use super::Inner;
use super::running::Running;
use crate::error::Result;
use crate::hal::level_zero::driver::EventHandle;
use crate::hal::level_zero::entry::{Entry, complete_observed};
use crate::hal::level_zero::pooled::Pooled;
use crate::ipc::EventCore;
use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, MutexGuard};

/// What ended commands leave.
#[derive(Default)]
pub(super) struct Left {
    pub(super) count: u64,
    /// The commands, on their way out.
    entries: VecDeque<Entry>,
    /// The list may have a part of one.
    is_unsure: bool,
    /// More may come.
    pub(super) goes_on: bool,
    lingering: Vec<Arc<EventCore>>,
}

impl Inner {
    /// Takes in what commands have left that are over.
    pub(super) fn take_in(&self, running: &mut Running, left: &mut Left) {
        left.count = 0;
        running.is_unsure |= mem::take(&mut left.is_unsure);
        running.lingering.append(&mut left.lingering);
    }

    /// Ends the first commands.
    pub(super) fn end(
        &self,
        running: MutexGuard<'_, Running>,
        count: usize,
        result: Result<()>,
        left: &mut Left,
    ) {
        self.end_seen(running, (0, count), result, left);
    }

    /// The same where the list was seen to be past the first ones of them.
    fn end_seen(
        &self,
        mut running: MutexGuard<'_, Running>,
        (seen, count): (usize, usize),
        result: Result<()>,
        left: &mut Left,
    ) {
        let end = running.first + count as u64;
        let marks = running.marks.take_before(end);
        running.take_first(count, &mut left.entries);
        left.goes_on = !self.is_closed();
        // What the program gave is called and dropped without locks.
        drop(running);
        for entry in left.entries.iter_mut().take(seen) {
            entry.is_left = false;
            complete_observed(&entry.waits);
        }
        for entry in left.entries.drain(..) {
            left.count += 1;
            left.is_unsure |= entry.is_left;
            left.lingering
                .extend(entry.end(&self.notes, result.clone(), left.goes_on));
        }
        self.refresh(marks);
    }

    /// How many commands are over with the one at `index`: those that need nothing more of the list
    /// come with it.
    pub(super) fn over_with(running: &Running, index: usize) -> usize {
        index + 1 + Self::over_from(running, index + 1)
    }

    /// How many commands from `index` on need nothing more of the list than that it is past all
    /// before: up to the next one with a mark.
    pub(super) fn over_from(running: &Running, index: usize) -> usize {
        let marked = running.marks.next_from(running.first + index as u64);
        let end = (marked.unwrap_or(running.end()) - running.first) as usize;
        let later = running.entries.iter().take(end).skip(index);
        later.take_while(|entry| entry.is_bare).count()
    }

    /// Ends commands, up to one that the list is past, or of which nobody will know.
    pub(super) fn end_marked(
        &self,
        mut running: MutexGuard<'_, Running>,
        (marked, count): (usize, usize),
        result: Result<()>,
        left: &mut Left,
    ) {
        let (mut lingering, mut late) = (Vec::new(), Vec::new());
        match &result {
            // The list is past what lingered until now, and past what was left.
            Ok(()) => {
                lingering = mem::take(&mut running.lingering);
                late = mem::take(&mut running.late);
                running.is_unsure = false;
            }
            Err(error) if self.front_in_turn().tip.is_lost(error) => {}
            Err(_) => self.leave(&mut running, count),
        }
        let seen = if result.is_ok() { marked } else { 0 };
        self.end_seen(running, (seen, count), result, left);
        self.refresh(late);
        drop(lingering);
    }

    /// The latest command up to this one that may end together with the one at `index`: those with
    /// timestamps end one by one.
    pub(super) fn latest_without_times(running: &Running, index: usize, command: u64) -> usize {
        let last = (command - running.first) as usize;
        let mut together = running.entries.range(index..=last);
        match !running.is_any_timed() || together.all(|entry| !entry.is_timed) {
            true => last,
            false => index,
        }
    }

    /// Gives back marks that the list has signalled, if they can be used again.
    pub(super) fn refresh(&self, marks: impl IntoIterator<Item = EventHandle>) {
        for mark in marks {
            if let Some(mark) = Pooled::refresh(&self.core, mark) {
                Pooled::return_to_pool(&self.core, mark);
            }
        }
    }

    /// Keeps for ever what the first commands use: nobody will know when they are done.
    pub(super) fn leave(&self, running: &mut Running, count: usize) {
        let end = running.first + count as u64;
        self.lose(running.marks.take_before(end));
        for entry in running.entries.iter_mut().take(count) {
            entry.keep_for_ever();
            entry.is_left = true;
        }
    }
}
