//! Commands into a list.
//!
//! Each is as few calls of the driver as it would be without us. How far the list is, it tells by
//! *marks*: events of a pool that it signals. A mark stands for its command and all before; most
//! short commands have none, and come with a later one.

use super::driver::EventHandle;
use super::entry::Entry;
use super::event;
use super::lane::{Inner, State};
use super::pooled::Pooled;
use super::work::{self, Target};
use crate::backend::Point;
use crate::error::{Error, Result};
use crate::sharing::{HeldCompanion, Profile};
use smallvec::SmallVec;
use std::mem::{self, ManuallyDrop};

/// What writes more bytes than this takes a time of its own: whoever waits for what came before
/// shall not wait for that too.
const SHORT: usize = 64 << 10;
/// So many short commands have a mark at the latest.
const PART: u32 = 64;

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
            if entry.waits_on_device() && !entry.is_marked() && !entry.is_left {
                self.mark_or_leave(state, entry);
            }
            entry.is_bare = entry.done.is_none();
        }
        true
    }

    /// Lets the list wait for the driver's own events, for what isn't there yet.
    fn wait_in(&self, state: &mut State, entry: &mut Entry) -> Result<bool> {
        let mut due: SmallVec<[usize; 2]> = SmallVec::new();
        for (place, wait) in entry.waits.iter().enumerate() {
            match wait.event.result(wait.number) {
                Some(Ok(())) => {}
                None if wait.event.has_companion_signal(wait.number) => due.push(place),
                None => {
                    wait.event.ask_for_companion();
                    return Ok(false);
                }
                Some(Err(_)) => return Ok(false),
            }
        }
        if due.is_empty() {
            return Ok(true);
        }
        // Who waits for what came before may have to go on so that this wait ends.
        self.mark_awaited(state)?;
        // With something long after it, the list is to say when it has begun with that.
        let started = match self.is_long(entry) {
            true => Some(state.take_mark(&self.core)?),
            false => None,
        };
        let list = state.list.as_ref().ok_or_else(no_list)?;
        let mut handles: SmallVec<[EventHandle; 2]> = SmallVec::new();
        let mut held: SmallVec<[HeldCompanion<'_>; 2]> = SmallVec::new();
        let mut promises: SmallVec<[_; 2]> = SmallVec::new();
        for place in due {
            let Some((handle, companion)) = self.hold(&entry.waits[place]) else {
                drop(held);
                state.marks.extend(started);
                return Ok(false);
            };
            handles.push(handle);
            promises.push((place, companion.promise));
            held.push(companion);
        }
        // SAFETY: the entry has the events and the mark, and is kept until the list is past this.
        let appended = unsafe { list.wait(&handles, started.as_ref().map(Pooled::handle)) };
        drop(held);
        if let Err(error) = appended {
            state.marks.extend(started);
            return Err(error);
        }
        for (place, promise) in promises {
            entry.waits[place].promise = Some(promise);
        }
        entry.started = started;
        if entry.started.is_some() {
            state.set_marked();
        } else {
            state.unmarked += 1;
            state.has_waits = true;
        }
        Ok(true)
    }

    /// The driver's event for a wait, which nobody signals meanwhile.
    fn hold<'a>(&self, wait: &'a Point) -> Option<(EventHandle, HeldCompanion<'a>)> {
        let handle = event::to_wait_for(&wait.event, &self.core)?;
        // Fails the signal of a process that died: to find what that has signalled with, Intel's
        // driver asks the process, and ends this one where that fails.
        if !wait.event.is_ours(wait.number) {
            wait.event.assist(wait.number);
        }
        let held = wait.event.hold_companion(wait.number)?;
        // It may have failed, which lists don't know.
        let is_pending = wait.event.result(wait.number).is_none();
        is_pending.then_some((handle, held))
    }

    /// Appends a command's work and the signal of the driver's own event, if that rides along.
    fn signal_in(&self, state: &mut State, entry: &mut Entry) -> Result<()> {
        if let Some(profile) = entry.profile() {
            Profile::stamp(&profile.started);
        }
        let Some((event, ticket)) = &entry.signal else {
            return self.work_in(state, entry, None);
        };
        let companion = match event.wants_companion() {
            true => event::to_signal(event, &self.core).filter(|_| event.begin_companion_signal()),
            false => None,
        };
        if companion.is_none() {
            return self.work_in(state, entry, None);
        }
        let number = ticket.number;
        let appended = self.work_in(state, entry, companion);
        entry.companion = companion.filter(|_| appended.is_ok());
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
        let is_long = self.is_long(entry);
        if is_long {
            // Whether it waits or is busy, could not be told.
            state.is_awaited |= state.has_waits;
            self.mark_awaited(state)?;
        }
        let wants_mark = is_long || is_awaited && companion.is_none() || state.unmarked + 1 >= PART;
        let mark = match wants_mark {
            true => Some(state.take_mark(&self.core)?),
            false => None,
        };
        let last = mark.as_ref().map(|mark| mark.handle()).or(companion);
        let list = state.list.as_ref().ok_or_else(no_list)?;
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
                false => state.marks.extend(mark),
                // Whether the list has it is not known.
                true => mem::forget(mark),
            }
            if has_begun {
                self.mark_or_leave(state, entry);
            }
            return appended;
        }
        if mark.is_some() {
            entry.done = mark;
            state.set_marked();
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
        entry.is_bare = entry.started.is_some() || !entry.waits_on_device();
        let is_awaited = entry.is_awaited();
        if let Some(companion) = companion {
            let list = state.list.as_ref().ok_or_else(no_list)?;
            entry.lingers = true;
            // SAFETY: the event stays until the list is past this: the entry has it, and then it
            // lingers.
            unsafe { list.signal(companion)? };
        } else if is_awaited && state.unmarked > 0 {
            entry.done = Some(self.mark(state)?);
            return Ok(());
        }
        state.is_awaited |= is_awaited && state.unmarked > 0;
        Ok(())
    }

    /// Whether a command takes so long that its end is not that of what comes before.
    fn is_long(&self, entry: &Entry) -> bool {
        work::bytes(&entry.work) > SHORT || entry.profile().is_some()
    }

    /// Sees to it that whoever waits for what is in the list need not wait for what comes next.
    fn mark_awaited(&self, state: &mut State) -> Result<()> {
        match state.appended.checked_sub(1) {
            Some(last) if state.is_awaited => {
                state.entries[last].done = Some(self.mark(state)?);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Lets the list signal a mark of a command of which it has a part, or keeps what it uses.
    fn mark_or_leave(&self, state: &mut State, entry: &mut Entry) {
        match self.mark(state) {
            Ok(mark) => entry.done = Some(mark),
            Err(_) => {
                entry.keep_for_ever();
                entry.is_left = true;
            }
        }
    }

    /// Lets the list signal a mark. The caller gives it to the latest command in the list.
    pub(super) fn mark(&self, state: &mut State) -> Result<Pooled> {
        let mark = state.take_mark(&self.core)?;
        let list = state.list.as_ref().ok_or_else(no_list)?;
        // SAFETY: all callers give it to a command that is kept until the list is past this.
        if let Err(error) = unsafe { list.signal(mark.handle()) } {
            state.marks.push(mark);
            return Err(error);
        }
        state.set_marked();
        Ok(mark)
    }
}

fn no_list() -> Error {
    Error::CommandFailed("there is no command list".into())
}
