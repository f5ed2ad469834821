//! Commands into a list.
//!
//! Each is as few calls of the driver as it would be without us. How far the list is, it tells by
//! *marks*: events of a pool that it signals. A mark stands for its command and all before; most
//! short commands have none, and come with a later one.

use super::Inner;
use super::marks::Moment;
use super::state::State;
use crate::backend::Point;
use crate::backend::level_zero::driver::EventHandle;
use crate::backend::level_zero::entry::Entry;
use crate::backend::level_zero::event;
use crate::backend::level_zero::work::{self, Target};
use crate::error::{Error, Result};
use crate::sharing::{HeldCompanion, Profile};
use smallvec::SmallVec;
use std::mem::{self, ManuallyDrop};

/// What writes more bytes than this takes a time of its own: whoever waits for what came before
/// shall not wait for that too.
const SHORT: usize = 64 << 10;
/// So many short commands have a mark at the latest.
const PART: u32 = 64;
/// The same of those with which the list signals the driver's own events: a mark is another call.
const LONG_PART: u32 = 256;

impl Inner {
    /// Appends the first command that is held. `false` if the host has to wait for something first.
    pub(super) fn append_held(&self, state: &mut State) -> bool {
        let index = state.appended;
        let mut entry = ManuallyDrop::new(mem::take(&mut state.entries[index]));
        let is_appended = self.append(state, &mut entry);
        state.entries[index] = ManuallyDrop::into_inner(entry);
        state.appended += usize::from(is_appended);
        is_appended
    }

    /// Appends a command that comes right after those in the list. `false` if the host has to wait
    /// for something first. A command that the driver refuses fails when its turn comes.
    pub(super) fn append(&self, state: &mut State, entry: &mut Entry) -> bool {
        if entry.has_failed() {
            entry.is_bare = true;
            return true;
        }
        let waited = match entry.waits.is_empty() {
            true => Ok(true),
            false => self.wait_in(state, entry),
        };
        let appended = match waited {
            Ok(false) => return false,
            Ok(true) => self.signal_in(state, entry),
            Err(error) => Err(error),
        };
        if let Err(error) = appended {
            entry.rare().failed = Some(error);
            // The list has what it waits for.
            let is_marked = state.marks.latest_of(state.next_number()).is_some();
            if entry.waits_on_device() && !is_marked && !entry.is_left {
                self.mark_or_leave(state, entry);
            }
            let mark = state.marks.latest_of(state.next_number());
            entry.is_bare = mark.is_none_or(Moment::is_start);
        }
        true
    }

    /// Lets the list wait for the driver's own events, for what isn't there yet.
    fn wait_in(&self, state: &mut State, entry: &mut Entry) -> Result<bool> {
        let mut waits = entry.waits.iter();
        if state.is_awaited && waits.any(|wait| wait.event.has_companion_signal(wait.number)) {
            // Who waits for what came before may have to go on so that this wait ends.
            self.mark_awaited(state)?;
        }
        let mut handles: SmallVec<[EventHandle; 2]> = SmallVec::new();
        let mut held: SmallVec<[(usize, HeldCompanion<'_>); 2]> = SmallVec::new();
        for (place, wait) in entry.waits.iter().enumerate() {
            let found = self.hold(wait);
            // It may have failed meanwhile, which lists don't know.
            match (wait.event.result(wait.number), found) {
                (Some(Ok(())), _) => {}
                (None, Some((handle, companion))) => {
                    handles.push(handle);
                    held.push((place, companion));
                }
                (None, None) => {
                    wait.event.ask_for_companion();
                    return Ok(false);
                }
                (Some(Err(_)), _) => return Ok(false),
            }
        }
        if held.is_empty() {
            return Ok(true);
        }
        let list = state.list.as_ref().ok_or_else(no_list)?;
        // With something long after it, the list is to say when it has begun with that.
        let started = match is_long(entry) {
            true => Some(state.marks.take()?),
            false => None,
        };
        // SAFETY: the entry has the events, and is kept until the list is past this, as the mark is.
        let appended = unsafe { list.wait(&handles, started) };
        let promise = |(place, held): (usize, HeldCompanion<'_>)| (place, held.promise);
        let promises: SmallVec<[_; 2]> = held.into_iter().map(promise).collect();
        if let Err(error) = appended {
            state.marks.give_back(started);
            return Err(error);
        }
        for (place, promise) in promises {
            entry.waits[place].promise = Some(promise);
        }
        state.waiting += 1;
        if let Some(started) = started {
            state.set_mark(started, Moment::start_of(state.next_number()));
        } else {
            state.unmarked += 1;
            state.has_waits = true;
        }
        Ok(true)
    }

    /// The driver's event for a wait, if it stands for that; nobody signals it meanwhile.
    fn hold<'a>(&self, wait: &'a Point) -> Option<(EventHandle, HeldCompanion<'a>)> {
        if !wait.event.has_companion_signal(wait.number) {
            return None;
        }
        let handle = event::to_wait_for(&wait.event, &self.core)?;
        // Fails the signal of a process that died: to find what that has signalled with, Intel's
        // driver asks the process, and ends this one where that fails.
        if !wait.event.is_ours(wait.number) {
            wait.event.assist(wait.number);
        }
        Some((handle, wait.event.hold_companion(wait.number)?))
    }

    /// Appends a command's work and the signal of the driver's own event, if that rides along.
    fn signal_in(&self, state: &mut State, entry: &mut Entry) -> Result<()> {
        if let Some(profile) = entry.profile() {
            Profile::stamp(&profile.started);
        }
        let Some((event, number)) = &entry.signal else {
            return self.work_in(state, entry, None);
        };
        let companion = event.begin_companion_signal(|| event::to_signal(event, &self.core));
        if companion.is_none() {
            return self.work_in(state, entry, None);
        }
        let number = *number;
        let appended = self.work_in(state, entry, companion);
        entry.has_companion = appended.is_ok();
        if let Some((event, _)) = &entry.signal {
            event.end_companion_signal(appended.as_ref().map_or(0, |()| number));
        }
        appended
    }

    /// Appends a command's work, and signals an event after it.
    fn work_in(
        &self,
        state: &mut State,
        entry: &mut Entry,
        companion: Option<EventHandle>,
    ) -> Result<()> {
        if work::bytes(&entry.work) == 0 {
            return self.signal_bare(state, entry, companion);
        }
        let is_awaited = entry.is_awaited();
        let is_long = is_long(entry);
        if is_long {
            // Whether it waits or is busy, could not be told.
            state.is_awaited |= state.has_waits;
            self.mark_awaited(state)?;
        }
        // The driver's own event tells the same, while it is the latest.
        let wants_mark = is_long
            || match companion {
                Some(_) => state.unmarked + 1 >= LONG_PART,
                None => is_awaited || state.unmarked + 1 >= PART,
            };
        let list = state.list.as_ref().ok_or_else(no_list)?;
        let mark = match wants_mark {
            true => Some(state.marks.take()?),
            false => None,
        };
        let last = mark.or(companion);
        let mut target = Target {
            gpu: &self.gpu,
            core: &self.core,
            list,
            has_begun: false,
        };
        let mut extra = None;
        // SAFETY: the entry has all that the command uses, and is kept until the list is past this;
        // if it never is, or that is not known, what it uses is kept for ever.
        let appended = unsafe { target.append(&entry.work, &mut extra, last) };
        if extra.is_some() {
            entry.rare().extra = extra;
        }
        let appended = match (companion, appended) {
            (Some(companion), Ok(())) if mark.is_some() => {
                entry.lingers = true;
                // SAFETY: as above; it lingers until the list is past this.
                unsafe { list.signal(companion) }
            }
            (_, appended) => appended,
        };
        let has_begun = target.has_begun;
        if appended.is_err() {
            match has_begun {
                false => state.marks.give_back(mark),
                // Whether the list has the mark is not known.
                true => {
                    mark.into_iter().for_each(|mark| state.marks.lose(mark));
                    self.mark_or_leave(state, entry);
                }
            }
            return appended;
        }
        if let Some(mark) = mark {
            state.set_mark(mark, Moment::end_of(state.next_number()));
        } else {
            state.unmarked += 1;
            state.is_awaited |= is_awaited;
        }
        Ok(())
    }

    /// A command that does nothing is done when all before is: it needs a mark only if nothing else
    /// tells that.
    fn signal_bare(
        &self,
        state: &mut State,
        entry: &mut Entry,
        companion: Option<EventHandle>,
    ) -> Result<()> {
        let number = state.next_number();
        entry.is_bare = !entry.waits_on_device() || state.marks.latest_of(number).is_some();
        let is_awaited = entry.is_awaited();
        if let Some(companion) = companion {
            let list = state.list.as_ref().ok_or_else(no_list)?;
            entry.lingers = true;
            // SAFETY: the event stays until the list is past this: the entry has it, and then it
            // lingers.
            unsafe { list.signal(companion)? };
        } else if is_awaited && state.unmarked > 0 {
            return self.mark(state, number);
        }
        state.is_awaited |= is_awaited && state.unmarked > 0;
        Ok(())
    }

    /// Sees to it that whoever waits for what is in the list need not wait for what comes next.
    fn mark_awaited(&self, state: &mut State) -> Result<()> {
        match state.is_awaited && state.appended > 0 {
            true => self.mark(state, state.next_number() - 1),
            false => Ok(()),
        }
    }

    /// Lets the list signal a mark of a command of which it has a part, or keeps what it uses.
    fn mark_or_leave(&self, state: &mut State, entry: &mut Entry) {
        let number = state.next_number();
        if self.mark(state, number).is_err() {
            state.marks.lose_from(number);
            entry.keep_for_ever();
            entry.is_left = true;
        }
    }

    /// Lets the list signal a mark when it is done with this command, which is its latest.
    pub(super) fn mark(&self, state: &mut State, command: u64) -> Result<()> {
        let mark = Self::append_mark(state)?;
        state.set_mark(mark, Moment::end_of(command));
        Ok(())
    }

    /// Lets the list signal a mark.
    pub(super) fn append_mark(state: &mut State) -> Result<EventHandle> {
        let list = state.list.as_ref().ok_or_else(no_list)?;
        let mark = state.marks.take()?;
        // SAFETY: nobody gives it back before the list has signalled it.
        if let Err(error) = unsafe { list.signal(mark) } {
            state.marks.give_back([mark]);
            return Err(error);
        }
        Ok(mark)
    }
}

/// Whether a command takes so long that its end is not that of what comes before.
pub(super) fn is_long(entry: &Entry) -> bool {
    work::bytes(&entry.work) > SHORT || entry.is_timed
}

fn no_list() -> Error {
    Error::CommandFailed("there is no command list".into())
}
