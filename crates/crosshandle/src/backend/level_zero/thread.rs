//! A lane's thread: it looks how far the list is, and ends commands.

use super::driver::{EventHandle, is_device_lost};
use super::entry::{Entry, copy_of, is_broken, is_settled, witness};
use super::lane::{Inner, Rest, State};
use super::leaving;
use super::pooled::Pooled;
use crate::backend::{Point, Points};
use crate::error::{Error, Result};
use crate::sharing::EventCore;
use std::mem;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long to wait for the device before having a look at the rest of the world.
const SLICE: Duration = Duration::from_millis(40);
/// After so many looks, a list that has not gone on although all has happened that it waits for, in
/// part by failing, will never do so.
const OVERDUE: u32 = 2;
/// How late commands may end that nobody is known to wait for, and how long a submission finds the
/// thread awake.
const NAP: Duration = Duration::from_millis(5);
/// What comes within this time is looked at together.
const PAUSE: Duration = Duration::from_micros(5);
/// The same while more and more comes: whoever submits shall not find the thread in his way.
const LONG_PAUSE: Duration = Duration::from_micros(20);
/// With so many commands at a time, that is so.
const MANY: u64 = 4;
/// How long to wait for the driver's own event before the list gets a mark.
const SHORT_WAIT: Duration = Duration::from_micros(50);
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

/// What ended commands leave.
#[derive(Default)]
pub(super) struct Left {
    pub(super) count: u64,
    pub(super) marks: Vec<Pooled>,
    pub(super) lingering: Vec<Arc<EventCore>>,
}

impl Inner {
    /// The thread. It ends when the queue is dropped and all its commands are done.
    pub(super) fn run(&self) {
        leaving::begin();
        let mut left = Left::default();
        let mut has_napped = false;
        let mut pauses = 0;
        loop {
            let mut state = self.state_in_turn();
            let ended = self.take_in(&mut state, &mut left);
            if ended > 0 {
                pauses = PAUSES;
            }
            if pauses > 0 && (ended > 0 || state.is_idle()) && !state.is_closed {
                pauses -= 1;
                drop(state);
                pause(if ended < MANY { PAUSE } else { LONG_PAUSE });
                continue;
            }
            let step = self.next(&mut state, has_napped);
            if !matches!(step, Step::Rest(_)) {
                has_napped = false;
            }
            match step {
                Step::Exit => {
                    let (list, marks) = (state.list.take(), mem::take(&mut state.marks));
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

    /// How many commands have ended.
    fn take_in(&self, state: &mut State, left: &mut Left) -> u64 {
        let count = mem::take(&mut left.count);
        state.ended += count;
        state.marks.append(&mut left.marks);
        state.lingering.append(&mut left.lingering);
        if count > 0 && state.finishers > 0 {
            self.finished.notify_all();
        }
        count
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
        let is_over = |entry: &Entry| entry.is_bare && !entry.is_marked();
        let in_list = || state.entries.iter().take(state.appended);
        let over = in_list().take_while(|entry| is_over(entry)).count();
        if over > 0 {
            return Step::End(over, Ok(()));
        }
        if state.ended >= state.pressing && !state.is_closed {
            return Step::Rest(Rest::Nap);
        }
        match in_list().position(Entry::is_marked) {
            Some(index) if state.entries[index].started.is_some() => Step::AwaitStart(index),
            Some(index) => Step::AwaitEnd(index),
            None => match in_list().rposition(|entry| entry.companion.is_some()) {
                Some(index) => Step::AskEnd(index),
                None => self.mark_all(state),
            },
        }
    }

    /// Lets the list tell when it is done with all that it has.
    fn mark_all(&self, state: &mut State) -> Step {
        let last = state.appended - 1;
        match self.mark(state) {
            Ok(mark) => {
                state.entries[last].done = Some(mark);
                Step::AwaitEnd(last)
            }
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

    /// Ends the first commands.
    pub(super) fn end(
        &self,
        mut state: MutexGuard<'_, State>,
        count: usize,
        result: Result<()>,
        left: &mut Left,
    ) {
        let entries: Vec<_> = state.entries.drain(..count).collect();
        state.appended -= count.min(state.appended);
        state.is_unsure |= entries.iter().any(|entry| entry.is_left);
        let goes_on = !state.is_closed;
        drop(state);
        for mut entry in entries {
            let marks = entry.started.take().into_iter().chain(entry.done.take());
            left.marks.extend(marks.filter_map(Pooled::into_fresh));
            left.lingering
                .extend(entry.end(&self.notes, result.clone(), goes_on));
            left.count += 1;
        }
    }

    /// How many commands are over with the one at `index`: those that need nothing more of the list
    /// come with it.
    fn over_with(state: &State, index: usize) -> usize {
        let later = state.entries.iter().take(state.appended).skip(index + 1);
        let bare = later.take_while(|entry| entry.is_bare && !entry.is_marked());
        index + 1 + bare.count()
    }

    /// Ends commands, up to one that the list is past, or of which nobody will know.
    fn end_marked(
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
                for entry in state.entries.iter_mut().take(marked) {
                    entry.is_left = false;
                    witness(&entry.waits);
                }
            }
            Err(error) if is_device_lost(error) => {}
            Err(_) => leave(&mut state, count),
        }
        self.end(state, count, result, left);
        drop(lingering);
    }

    fn await_end(&self, state: MutexGuard<'_, State>, index: usize, left: &mut Left) {
        let done = state.entries[index].done.as_ref().map(Pooled::handle);
        let entries = state.entries.iter().take(index + 1);
        // Of those with a mark of their own, the list is past the waits.
        let waits = entries.filter(|entry| entry.waits_on_device() && !entry.is_begun);
        let waits: Points = waits.flat_map(|entry| &entry.waits).map(copy_of).collect();
        drop(state);
        let result = match done.map_or(Ok(true), |mark| self.wait_or_give_up(mark, &waits)) {
            Ok(true) => Ok(()),
            Ok(false) => return self.give_up_list(),
            Err(error) => Err(error),
        };
        let state = self.state_in_turn();
        let count = Self::over_with(&state, index);
        self.end_marked(state, (index + 1, count), result, left);
    }

    /// Waits for the driver's own event of a command, a little.
    fn ask_end(&self, state: MutexGuard<'_, State>, index: usize, left: &mut Left) {
        let entry = &state.entries[index];
        let signal = entry.signal.as_ref();
        let asked = signal
            .zip(entry.companion)
            .map(|((event, ticket), companion)| (Arc::clone(event), ticket.number, companion));
        drop(state);
        let is_done = asked
            .is_some_and(|(event, number, companion)| self.is_signalled(&event, number, companion));
        let mut state = self.state_in_turn();
        if is_done {
            let count = Self::over_with(&state, index);
            return self.end_marked(state, (index + 1, count), Ok(()), left);
        }
        if let Step::End(count, result) = self.mark_all(&mut state) {
            self.end(state, count, result, left);
        }
    }

    /// Whether the driver's own event soon tells of this number.
    fn is_signalled(&self, event: &EventCore, number: u64, companion: EventHandle) -> bool {
        let end = Instant::now() + SHORT_WAIT;
        loop {
            // Others would have it speak of their signal; and while they do, drivers don't expect
            // to be asked about it.
            let Some(held) = event.hold_companion(number) else {
                return false;
            };
            let asked = Pooled::wait_for(&self.core, companion, Duration::ZERO);
            drop(held);
            match asked {
                Ok(false) if Instant::now() < end => std::thread::yield_now(),
                asked => return matches!(asked, Ok(true)),
            }
        }
    }

    fn wait_for(&self, mark: EventHandle) -> Result<()> {
        while !Pooled::wait_for(&self.core, mark, SLICE)? {}
        Ok(())
    }

    /// Waits for the driver's own events, as the list does.
    fn await_start(&self, state: MutexGuard<'_, State>, index: usize, left: &mut Left) {
        let entry = &state.entries[index];
        let started = entry.started.as_ref().map(Pooled::handle);
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
        let entry = &mut state.entries[index];
        let started = entry.started.take();
        entry.is_begun = true;
        let count = match entry.is_bare && !entry.is_marked() {
            true => Self::over_with(&state, index),
            false => index,
        };
        self.end_marked(state, (index, count), Ok(()), left);
        let mark = started.and_then(Pooled::into_fresh);
        left.marks.extend(mark);
    }

    /// Waits for a mark behind a wait for driver's events. `false` if that will never end.
    fn wait_or_give_up(&self, mark: EventHandle, waits: &[Point]) -> Result<bool> {
        let mut overdue = 0;
        while !Pooled::wait_for(&self.core, mark, SLICE)? {
            for wait in waits {
                // Fails the signal of a process that died.
                wait.event.assist(wait.number);
            }
            if waits.iter().all(is_settled) && waits.iter().any(is_broken) {
                overdue += 1;
            }
            if overdue == OVERDUE {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until the list is past all that it has, and lets go of what lingers.
    fn await_rest(&self, mut state: MutexGuard<'_, State>, left: &mut Left) {
        let lingering = mem::take(&mut state.lingering);
        let mark = state.take_mark(&self.core).and_then(|mark| {
            let list = state.list.as_ref().ok_or(Error::Protocol("no list"))?;
            // SAFETY: it is kept until it is signalled, or for ever.
            unsafe { list.signal(mark.handle())? };
            Ok(mark)
        });
        drop(state);
        let waited = mark.and_then(|mark| match self.wait_for(mark.handle()) {
            Ok(()) => Ok(mark),
            Err(error) => {
                mem::forget(mark);
                Err(error)
            }
        });
        match waited {
            Ok(mark) => left.marks.extend(mark.into_fresh()),
            Err(error) if is_device_lost(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "a command list's end is not known");
                mem::forget(lingering);
                self.state_in_turn().is_unsure = true;
            }
        }
    }
}

/// Keeps for ever what the first commands use: nobody will know when they are done.
fn leave(state: &mut State, count: usize) {
    for entry in state.entries.iter_mut().take(count) {
        entry.keep_for_ever();
        entry.is_left = true;
    }
}

/// Lets some time pass.
fn pause(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::thread::yield_now();
    }
}
