//! A lane's thread: it looks how far the list is, ends commands, and does what the host has to.
//!
//! A list that waits for a signal of a process that died never goes on. It is given up, with what
//! its commands use, and they are appended to a new one.

use super::driver::{EventHandle, List, is_device_lost};
use super::entry::{Entry, Over, call, copy_of};
use super::lane::{Inner, Rest, State};
use super::pooled::Pooled;
use crate::backend::{Point, Points, Work};
use crate::error::{Error, Result};
use crate::sharing::{EventCore, Profile};
use std::mem;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long to wait for the device before having a look at the rest of the world.
const SLICE: Duration = Duration::from_millis(40);
/// After so many looks, a list that waits for what has failed will never go on. Until then it may: a
/// device outlives its process for some milliseconds.
const OVERDUE: u32 = 2;
/// How late commands may end that nobody is known to wait for, and how long a submission finds the
/// thread awake.
const NAP: Duration = Duration::from_millis(5);
/// What comes within this time is looked at together.
const PAUSE: Duration = Duration::from_micros(5);
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
    /// Waits until it is done with all, after which nothing lingers.
    AwaitRest,
    /// Does what the host has to for the first one.
    Release,
}

/// What ended commands leave.
#[derive(Default)]
struct Left {
    count: u64,
    marks: Vec<Pooled>,
    lingering: Vec<Arc<EventCore>>,
}

impl Inner {
    /// The thread. It ends when the queue is dropped and all its commands are done.
    pub(super) fn run(&self) {
        let mut left = Left::default();
        let mut has_napped = false;
        let mut pauses = 0;
        loop {
            let mut state = self.state_in_turn();
            let has_ended = self.take_in(&mut state, &mut left);
            if has_ended {
                pauses = PAUSES;
            }
            if pauses > 0 && (has_ended || state.is_idle()) && !state.is_closed {
                pauses -= 1;
                drop(state);
                pause();
                continue;
            }
            let step = self.next(&mut state, has_napped);
            if !matches!(step, Step::Rest(_)) {
                has_napped = false;
            }
            match step {
                Step::Exit => {
                    let rest = (state.list.take(), mem::take(&mut state.marks));
                    let is_unsure = state.is_unsure;
                    drop(state);
                    match is_unsure {
                        true => mem::forget(rest),
                        false => drop(rest),
                    }
                    return;
                }
                Step::Rest(rest) => has_napped = self.rest(state, rest),
                Step::End(count, result) => self.end(state, count, result, &mut left),
                Step::AwaitStart(index) => self.await_start(state, index, &mut left),
                Step::AwaitEnd(index) => self.await_end(state, index, &mut left),
                Step::AwaitRest => self.await_rest(state, &mut left),
                Step::Release => self.release(state, &mut left),
            }
        }
    }

    /// Whether commands have ended.
    fn take_in(&self, state: &mut State, left: &mut Left) -> bool {
        let count = mem::take(&mut left.count);
        state.ended += count;
        state.marks.append(&mut left.marks);
        state.lingering.append(&mut left.lingering);
        if state.finishers > 0 {
            self.finished.notify_all();
        }
        count > 0
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
            None => {
                let last = state.appended - 1;
                match self.mark(state, last) {
                    Ok(()) => Step::AwaitEnd(last),
                    Err(error) => self.fail_all(state, error),
                }
            }
        }
    }

    /// The list takes nothing any more, not even a mark: nobody will know when it is done.
    fn fail_all(&self, state: &mut State, error: Error) -> Step {
        if !is_device_lost(&error) {
            let entries = state.entries.iter_mut().take(state.appended);
            entries.for_each(Entry::keep_for_ever);
            state.is_unsure = true;
        }
        state.unmarked = 0;
        state.is_awaited = false;
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
    fn end(
        &self,
        mut state: MutexGuard<'_, State>,
        count: usize,
        result: Result<()>,
        left: &mut Left,
    ) {
        let entries: Vec<_> = state.entries.drain(..count).collect();
        state.appended -= count.min(state.appended);
        let goes_on = !state.is_closed;
        drop(state);
        for mut entry in entries {
            for mark in [entry.started.take(), entry.done.take()]
                .into_iter()
                .flatten()
            {
                left.marks.extend(mark.reset());
            }
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

    /// Ends commands that the list is past, or may never be past.
    fn end_marked(
        &self,
        mut state: MutexGuard<'_, State>,
        count: usize,
        result: Result<()>,
        left: &mut Left,
    ) {
        if result.as_ref().is_err_and(|error| !is_device_lost(error)) {
            let entries = state.entries.iter_mut().take(count);
            entries.for_each(Entry::keep_for_ever);
            state.is_unsure = true;
        }
        // The list is past what lingered until now.
        let lingering = match result {
            Ok(()) => mem::take(&mut state.lingering),
            Err(_) => Vec::new(),
        };
        self.end(state, count, result, left);
        drop(lingering);
    }

    fn await_end(&self, state: MutexGuard<'_, State>, index: usize, left: &mut Left) {
        let done = state.entries[index].done.as_ref().map(Pooled::handle);
        drop(state);
        let result = done.map_or(Ok(()), |done| self.wait_for(done));
        let state = self.state_in_turn();
        let count = Self::over_with(&state, index);
        self.end_marked(state, count, result, left);
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
        let awaited = waits.iter().filter(|wait| wait.promise.is_some());
        let result = match started.map_or(Ok(true), |mark| self.wait_or_give_up(mark, &waits)) {
            Ok(true) => Ok(()),
            Ok(false) => return self.give_up_list(),
            Err(error) => Err(error),
        };
        if result.is_ok() {
            for wait in awaited.filter(|wait| !is_revoked(wait)) {
                wait.event.witness(wait.number);
            }
        }
        let mut state = self.state_in_turn();
        if result.is_err() {
            return self.end_marked(state, index + 1, result, left);
        }
        let entry = &mut state.entries[index];
        let started = entry.started.take();
        let count = match entry.is_bare && !entry.is_marked() {
            true => Self::over_with(&state, index),
            false => index,
        };
        self.end_marked(state, count, Ok(()), left);
        left.marks.extend(started.and_then(Pooled::reset));
    }

    /// Waits for a mark behind a wait for driver's events. `false` if that will never end. A device
    /// that is busy with something else may be late as it likes: its commands must not run twice.
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
            Ok(mark) => left.marks.extend(mark.reset()),
            Err(error) if is_device_lost(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "a command list's end is not known");
                mem::forget(lingering);
                self.state_in_turn().is_unsure = true;
            }
        }
    }

    /// Leaves a list that waits for ever, and appends its commands to a new one. What they use
    /// stays with the old list: the driver may look at it for as long as that exists.
    fn give_up_list(&self) {
        let mut state = self.state_in_turn();
        let state = &mut *state;
        tracing::warn!(
            device = self.gpu.info().name,
            commands = state.appended,
            "a command list waits for a process that is gone; it is given up"
        );
        mem::forget(state.list.take());
        mem::forget(mem::take(&mut state.lingering));
        for entry in state.entries.iter_mut().take(state.appended) {
            entry.keep_for_ever();
            (entry.is_taken, entry.is_bare, entry.lingers) = (false, false, false);
            // Others may wait for what the old list would have signalled.
            if let Some((event, _)) = entry.signal.as_ref()
                && event.wants_companion()
            {
                event.revoke_companion();
            }
        }
        state.is_unsure = false;
        state.appended = 0;
        state.unmarked = 0;
        state.is_awaited = false;
        let (device, group) = (self.gpu.handle(), self.gpu.group());
        match List::create(&self.core, device, group) {
            Ok(list) => state.list = Some(list),
            Err(error) => tracing::error!(%error, "there is no new command list"),
        }
        self.append_more(state);
    }

    /// Does what the host has to for the first command, before which nothing is in the list, and
    /// ends it if it is over with that.
    fn release(&self, mut state: MutexGuard<'_, State>, left: &mut Left) {
        let front = &mut state.entries[0];
        front.is_taken = true;
        let waits = mem::take(&mut front.waits);
        let rare = front.rare.as_mut();
        let after = rare.map_or_else(Vec::new, |rare| mem::take(&mut rare.after));
        drop(state);
        after.iter().for_each(|over: &Arc<Over>| over.wait());
        let failed = waits
            .iter()
            .find_map(|wait| wait.event.wait(wait.number, None).err());
        let mut state = self.state_in_turn();
        if let Some(error) = failed {
            return self.end(state, 1, Err(error), left);
        }
        let front = &mut state.entries[0];
        if let Work::Call(_) = front.work {
            if let Some(profile) = front.profile() {
                Profile::stamp(&profile.started);
            }
            let work = mem::replace(&mut front.work, Work::Nothing);
            drop(state);
            let result = match work {
                Work::Call(function) => call(function),
                _ => Ok(()),
            };
            return self.end(self.state_in_turn(), 1, result, left);
        }
        // All that it waits for is there, and was taken out.
        self.append(&mut state);
        self.append_more(&mut state);
        let goes_on = !state.is_closed;
        drop(state);
        if goes_on {
            // For the next time: submitting must not wait for another process to answer.
            waits.iter().for_each(|wait| wait.event.fetch_companion());
        }
    }
}

/// Lets a moment pass.
fn pause() {
    let end = Instant::now() + PAUSE;
    while Instant::now() < end {
        std::thread::yield_now();
    }
}

fn is_settled(wait: &Point) -> bool {
    wait.event.result(wait.number).is_some()
}

/// Whether the device may never learn of it: it has failed, or comes by another list than was
/// promised.
fn is_broken(wait: &Point) -> bool {
    matches!(wait.event.result(wait.number), Some(Err(_))) || is_revoked(wait)
}

fn is_revoked(wait: &Point) -> bool {
    wait.promise
        .is_some_and(|promise| wait.event.is_revoked(promise))
}
