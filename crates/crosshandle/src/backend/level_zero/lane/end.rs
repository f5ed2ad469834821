//! How commands of a lane end.

use super::Inner;
use super::state::State;
use crate::backend::level_zero::driver::{EventHandle, is_device_lost};
use crate::backend::level_zero::entry::{Entry, witness};
use crate::backend::level_zero::pooled::Pooled;
use crate::error::Result;
use crate::sharing::EventCore;
use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, MutexGuard};

/// What ended commands leave.
#[derive(Default)]
pub(super) struct Left {
    pub(super) count: u64,
    /// The commands, on their way out.
    entries: VecDeque<Entry>,
    /// How many of them counted among those with timestamps, and those that waited.
    timed: usize,
    waiting: usize,
    /// The list may have a part of one.
    is_unsure: bool,
    /// More may come.
    pub(super) goes_on: bool,
    pub(super) marks: Vec<EventHandle>,
    pub(super) lingering: Vec<Arc<EventCore>>,
}

impl Inner {
    /// Takes in what commands have left that are over.
    pub(super) fn take_in(&self, state: &mut State, left: &mut Left) {
        let count = mem::take(&mut left.count);
        state.timed -= mem::take(&mut left.timed);
        state.waiting -= mem::take(&mut left.waiting);
        state.is_unsure |= mem::take(&mut left.is_unsure);
        state.marks.give_back(left.marks.drain(..));
        state.lingering.append(&mut left.lingering);
        if count > 0 && self.has_finishers() {
            self.finished.notify_all();
        }
    }

    /// Ends the first commands.
    pub(super) fn end(
        &self,
        state: MutexGuard<'_, State>,
        count: usize,
        result: Result<()>,
        left: &mut Left,
    ) {
        self.end_seen(state, (0, count), result, left);
    }

    /// The same where the list was seen to be past the first ones of them. Looks at them without the
    /// lock: they are in the caches of whoever submitted them, and he would wait for it.
    fn end_seen(
        &self,
        mut state: MutexGuard<'_, State>,
        (seen, count): (usize, usize),
        result: Result<()>,
        left: &mut Left,
    ) {
        let end = state.first() + count as u64;
        let marks = state.marks.take_before(end);
        take_first(&mut state.entries, count, &mut left.entries);
        state.appended -= count.min(state.appended);
        left.goes_on = !state.is_closed;
        drop(state);
        for entry in left.entries.iter_mut().take(seen) {
            entry.is_left = false;
            witness(&entry.waits);
        }
        for entry in left.entries.drain(..) {
            left.count += 1;
            left.timed += usize::from(entry.is_timed);
            left.waiting += usize::from(entry.waits_on_device());
            left.is_unsure |= entry.is_left;
            left.lingering
                .extend(entry.end(&self.notes, result.clone(), left.goes_on));
        }
        let marks = marks.into_iter();
        left.marks
            .extend(marks.filter_map(|mark| self.refresh(mark)));
    }

    /// How many commands are over with the one at `index`: those that need nothing more of the list
    /// come with it.
    pub(super) fn over_with(state: &State, index: usize) -> usize {
        index + 1 + Self::over_from(state, index + 1)
    }

    /// How many commands from `index` on need nothing more of the list than that it is past all
    /// before: up to the next one with a mark.
    pub(super) fn over_from(state: &State, index: usize) -> usize {
        let marked = state.marks.next_from(state.first() + index as u64);
        let end = marked.map_or(state.appended, |number| (number - state.first()) as usize);
        let later = state.entries.iter().take(end).skip(index);
        later.take_while(|entry| entry.is_bare).count()
    }

    /// Ends commands, up to one that the list is past, or of which nobody will know.
    pub(super) fn end_marked(
        &self,
        mut state: MutexGuard<'_, State>,
        (marked, count): (usize, usize),
        result: Result<()>,
        left: &mut Left,
    ) {
        let mut lingering = Vec::new();
        match &result {
            // The list is past what lingered until now, and past what was left.
            Ok(()) => {
                lingering = mem::take(&mut state.lingering);
                state.is_unsure = false;
            }
            Err(error) if is_device_lost(error) => {}
            Err(_) => leave(&mut state, count),
        }
        let seen = if result.is_ok() { marked } else { 0 };
        self.end_seen(state, (seen, count), result, left);
        drop(lingering);
    }

    /// The latest command up to this one that may end together with the one at `index`: those with
    /// timestamps end one by one.
    pub(super) fn latest_without_times(state: &State, index: usize, command: u64) -> usize {
        let last = (command - state.first()) as usize;
        let mut together = state.entries.range(index..=last);
        match state.timed == 0 || together.all(|entry| !entry.is_timed) {
            true => last,
            false => index,
        }
    }

    /// A mark that is ready to be used again, if there is a way.
    pub(super) fn refresh(&self, mark: EventHandle) -> Option<EventHandle> {
        Pooled::refresh(&self.core, mark)
    }
}

/// Keeps for ever what the first commands use: nobody will know when they are done.
pub(super) fn leave(state: &mut State, count: usize) {
    let end = state.first() + count as u64;
    state.marks.lose_before(end);
    for entry in state.entries.iter_mut().take(count) {
        entry.keep_for_ever();
        entry.is_left = true;
    }
}

/// Moves the first of a queue to an empty one; or, if they are fewer, the others, and swaps the two.
fn take_first<T>(queue: &mut VecDeque<T>, count: usize, taken: &mut VecDeque<T>) {
    debug_assert!(taken.is_empty());
    if queue.len() - count < count {
        taken.extend(queue.drain(count..));
        mem::swap(queue, taken);
    } else {
        taken.extend(queue.drain(..count));
    }
}

#[cfg(test)]
mod tests {
    use super::take_first;
    use std::collections::VecDeque;

    #[test]
    fn the_first_are_taken_in_order() {
        for len in 0..6 {
            for count in 0..=len {
                let mut queue: VecDeque<_> = (0..len).collect();
                let mut taken = VecDeque::new();
                take_first(&mut queue, count, &mut taken);
                assert!(taken.into_iter().eq(0..count));
                assert!(queue.into_iter().eq(count..len));
            }
        }
    }
}
