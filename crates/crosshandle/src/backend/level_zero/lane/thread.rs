//! A lane's thread: it looks how far the list is, and ends commands.

use super::Inner;
use super::end::{Left, leave};
use super::marks::Marks;
use super::state::{Rest, State};
use crate::backend::Points;
use crate::backend::level_zero::driver::is_device_lost;
use crate::backend::level_zero::entry::{copy_of, witness};
use crate::backend::level_zero::leaving;
use crate::backend::level_zero::pooled::Pooled;
use crate::error::{Error, Result};
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How late commands may end that nobody is known to wait for, and how long a submission finds the
/// thread awake.
const NAP: Duration = Duration::from_millis(5);
/// What comes within this time is looked at together.
const PAUSE: Duration = Duration::from_micros(5);
/// The same while more and more comes: whoever submits shall not find the thread in his way.
const LONG_PAUSE: Duration = Duration::from_micros(20);
/// With so many commands at a time, that is so.
const MANY: u64 = 4;
/// So many of these the thread stays awake with nothing to do: waking it takes the one who submits
/// longer than all the rest.
const PAUSES: u32 = 8;

/// What the thread does next.
enum Step {
    /// Its queue was dropped, and all is done.
    Exit,
    Rest(Rest),
    /// So many commands are over.
    End(usize, Result<()>),
    /// Waits until the list has begun with this command.
    AwaitStart(usize),
    /// Waits until it is done with this one.
    AwaitEnd(usize),
    /// The same without a mark: asks the driver's own event, and gives it a mark if that doesn't say.
    AskEnd(usize),
    /// Waits until it is done with all, after which nothing lingers.
    AwaitRest,
    /// Does what the host has to for the first one.
    Release,
}

impl Inner {
    /// The thread. It ends when the queue is dropped and all its commands are done.
    pub(super) fn run(&self) {
        leaving::begin();
        let mut left = Left::default();
        let mut has_napped = false;
        let mut pauses = 0;
        loop {
            if left.count > 0 {
                self.ended.fetch_add(left.count, Ordering::Release);
                pauses = PAUSES;
                if left.goes_on && !self.has_finishers() {
                    pause(if left.count < MANY { PAUSE } else { LONG_PAUSE });
                }
            }
            let mut state = self.state_in_turn();
            self.take_in(&mut state, &mut left);
            if pauses > 0 && self.is_idle(&state) && !state.is_closed {
                pauses -= 1;
                drop(state);
                pause(PAUSE);
                continue;
            }
            let step = self.next(&mut state, has_napped);
            if !matches!(step, Step::Rest(_)) {
                has_napped = false;
            }
            match step {
                Step::Exit => {
                    let marks = mem::replace(&mut state.marks, Marks::new(&self.core));
                    let list = state.list.take();
                    let is_unsure = state.is_unsure;
                    drop(state);
                    match is_unsure {
                        true => mem::forget(list),
                        false => drop(list),
                    }
                    drop(marks);
                    return;
                }
                Step::Rest(rest) => has_napped = self.rest(state, rest),
                Step::End(count, result) => self.end(state, count, result, &mut left),
                Step::AwaitStart(index) => self.await_start(state, index, &mut left),
                Step::AwaitEnd(index) => self.await_end(state, index, &mut left),
                Step::AskEnd(index) => self.ask_end(state, index, &mut left),
                Step::AwaitRest => self.await_rest(state, &mut left),
                Step::Release => self.release(state, &mut left),
            }
        }
    }

    fn next(&self, state: &mut State, has_napped: bool) -> Step {
        if has_napped {
            state.pressing = state.submitted;
        }
        if state.entries.is_empty() {
            return match state.lingering.is_empty() {
                false => Step::AwaitRest,
                true if state.is_closed => Step::Exit,
                true if has_napped => Step::Rest(Rest::Sleep),
                true => Step::Rest(Rest::Nap),
            };
        }
        if state.appended == 0 {
            return Step::Release;
        }
        let over = Self::over_from(state, 0);
        if over > 0 {
            return Step::End(over, Ok(()));
        }
        if self.ended() >= state.pressing && !state.is_closed {
            return Step::Rest(Rest::Nap);
        }
        if let Some((_, moment)) = state.marks.first() {
            let index = (moment.command() - state.first()) as usize;
            return match moment.is_start() {
                true => Step::AwaitStart(index),
                false => Step::AwaitEnd(index),
            };
        }
        let mut in_list = state.entries.iter().take(state.appended);
        match in_list.rposition(|entry| entry.has_companion) {
            Some(index) => Step::AskEnd(index),
            None => self.mark_all(state),
        }
    }

    /// Lets the list tell when it is done with all that it has.
    fn mark_all(&self, state: &mut State) -> Step {
        let last = state.next_number() - 1;
        match self.mark(state, last) {
            Ok(()) => Step::AwaitEnd(state.appended - 1),
            Err(error) => self.fail_all(state, error),
        }
    }

    /// The list takes nothing any more, not even a mark: nobody will know when it is done.
    fn fail_all(&self, state: &mut State, error: Error) -> Step {
        if !is_device_lost(&error) {
            leave(state, state.appended);
        }
        state.set_marked();
        Step::End(state.appended, Err(error))
    }

    /// Sleeps; whether it was a nap to its end.
    fn rest(&self, mut state: MutexGuard<'_, State>, rest: Rest) -> bool {
        state.rest = rest;
        let added = &self.added;
        let is_resting = |state: &mut State| state.rest == rest;
        let mut state = match rest {
            Rest::Nap => {
                let waited = added.wait_timeout_while(state, NAP, is_resting);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            _ => added
                .wait_while(state, is_resting)
                .unwrap_or_else(PoisonError::into_inner),
        };
        mem::take(&mut state.rest) == Rest::Nap
    }

    fn await_end(&self, state: MutexGuard<'_, State>, index: usize, left: &mut Left) {
        let done = state.marks.first().map(|(mark, _)| mark);
        let last = state.marks.last_end();
        let looked_at = if state.waiting > 0 { index + 1 } else { 0 };
        let entries = state.entries.iter().take(looked_at);
        // Of those with a mark of their own, the list is past the waits.
        let waits = entries.filter(|entry| entry.waits_on_device() && !entry.is_begun);
        let waits: Points = waits
            .flat_map(|entry| entry.waits.iter())
            .map(copy_of)
            .collect();
        drop(state);
        let result = match done.map_or(Ok(true), |mark| self.wait_or_give_up(mark, &waits)) {
            Ok(true) => Ok(()),
            Ok(false) => return self.give_up_list(),
            Err(error) => Err(error),
        };
        // As a rule the device is faster than this thread, and done with all.
        let last = last.filter(|(mark, _)| result.is_ok() && Some(*mark) != done);
        let last = last.filter(|(mark, _)| self.is_past(*mark));
        let state = self.state_in_turn();
        let index = match last {
            Some((_, moment)) => Self::latest_without_times(&state, index, moment.command()),
            None => index,
        };
        let count = Self::over_with(&state, index);
        self.end_marked(state, (index + 1, count), result, left);
    }

    /// Waits for the driver's own event of a command, a little.
    fn ask_end(&self, state: MutexGuard<'_, State>, index: usize, left: &mut Left) {
        let entry = &state.entries[index];
        let signal = entry.signal.as_ref();
        let asked = signal.map(|(event, number)| (Arc::clone(event), *number));
        drop(state);
        let is_done = asked.is_some_and(|(event, number)| self.is_signalled(&event, number));
        let mut state = self.state_in_turn();
        let number = state.first() + index as u64;
        match state.marks.first() {
            // Set meanwhile, and not signalled yet for all that is known: it is waited for next.
            Some((_, moment)) if !is_done || moment.command() <= number => {}
            _ if is_done => {
                let count = Self::over_with(&state, index);
                if count == state.appended {
                    state.set_marked();
                }
                self.end_marked(state, (index + 1, count), Ok(()), left);
            }
            _ => {
                if let Step::End(count, result) = self.mark_all(&mut state) {
                    self.end(state, count, result, left);
                }
            }
        }
    }

    /// Waits for the driver's own events, as the list does.
    fn await_start(&self, state: MutexGuard<'_, State>, index: usize, left: &mut Left) {
        let entry = &state.entries[index];
        let started = state.marks.first().map(|(mark, _)| mark);
        let waits: Points = entry.waits.iter().map(copy_of).collect();
        drop(state);
        let result = match started.map_or(Ok(true), |mark| self.wait_or_give_up(mark, &waits)) {
            Ok(true) => Ok(()),
            Ok(false) => return self.give_up_list(),
            Err(error) => Err(error),
        };
        if result.is_err() {
            let state = self.state_in_turn();
            return self.end_marked(state, (index, index + 1), result, left);
        }
        witness(&waits);
        let mut state = self.state_in_turn();
        let started = state.marks.take_first();
        state.entries[index].is_begun = true;
        let count = index + Self::over_from(&state, index);
        self.end_marked(state, (index, count), Ok(()), left);
        let mark = started.and_then(|mark| self.refresh(mark));
        left.marks.extend(mark);
    }

    /// Waits until the list is past all that it has, and lets go of what lingers.
    fn await_rest(&self, mut state: MutexGuard<'_, State>, left: &mut Left) {
        let lingering = mem::take(&mut state.lingering);
        let mark = Self::append_mark(&mut state);
        drop(state);
        let waited = mark.and_then(|mark| {
            let waited = self.wait_for(mark);
            waited
                .map(|()| mark)
                .inspect_err(|_| Pooled::lose(&self.core, mark))
        });
        match waited {
            Ok(mark) => left.marks.extend(self.refresh(mark)),
            Err(error) if is_device_lost(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "a command list's end is not known");
                mem::forget(lingering);
                self.state_in_turn().is_unsure = true;
            }
        }
    }
}

/// Lets some time pass, awake: a sleep of some µs takes many times as long.
fn pause(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::thread::yield_now();
    }
}
