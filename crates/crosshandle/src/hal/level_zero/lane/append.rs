//! Commands into a list.
//!
//! Each is as few calls of the driver as it would be without us. How far the list is, it tells by
//! *marks*: events of a pool that it signals. A mark stands for its command and all before; most
//! short commands have none, and come with a later one. As long as somebody may wait, there is at
//! least one: the thread, when it comes to it, asks for the next.
//!
//! To the compiler, most of this is one function: calls would take a tenth of a submission's time.

use super::Inner;
use super::front::{Front, Tip};
use super::handover::Put;
use super::marks::Moment;
use crate::error::{Error, Result};
use crate::event_protocol::Outcome;
use crate::hal::WaitPoint;
use crate::hal::level_zero::driver::EventHandle;
use crate::hal::level_zero::entry::Entry;
use crate::hal::level_zero::event;
use crate::hal::level_zero::pooled::Pooled;
use crate::hal::level_zero::work;
use crate::hal::level_zero::work::Target;
use crate::ipc::{EventCore, MirrorHold, Profile};
use std::sync::Arc;

/// So many short commands have a mark at the latest.
const PART: u32 = 256;

impl Inner {
    /// Appends the first command that is held. `false` if the host has to wait for something first.
    pub(super) fn append_held(&self, front: &mut Front) -> bool {
        let Front {
            tip,
            held,
            commands,
            ..
        } = front;
        let Some(entry) = held.pop_front() else {
            return false;
        };
        let left = self.append_from(tip, commands.place().put(entry));
        left.map(|entry| held.push_front(entry)).is_none()
    }

    /// Appends a command from where the thread finds it then: once the list has it, a panic must not
    /// take it away. It comes back if the host has to wait for something first.
    #[inline(always)]
    pub(super) fn append_from(&self, tip: &mut Tip, mut entry: Put<'_, Entry>) -> Option<Entry> {
        if tip.has_untold_marks() {
            // There was a panic.
            self.lose(tip.take_back(0));
        }
        let is_appended = self.append(tip, entry.item());
        tip.tell_marks();
        if !is_appended {
            return Some(entry.take_back());
        }
        tip.appended += 1;
        entry.give();
        None
    }

    /// Appends a command that comes right after those in the list. `false` if the host has to wait
    /// for something first. A command that the driver refuses fails when its turn comes.
    pub(super) fn append(&self, tip: &mut Tip, entry: &mut Entry) -> bool {
        if entry.has_failed() {
            entry.is_bare = true;
            return true;
        }
        let waited = match entry.waits.is_empty() {
            true => Ok(true),
            false => self.wait_in(tip, entry),
        };
        let appended = match waited {
            Ok(false) => return false,
            Ok(true) => self.signal_in(tip, entry),
            Err(error) => Err(error),
        };
        if let Err(error) = appended {
            entry.rare().failed = Some(error);
            // The list has what it waits for.
            let is_marked = tip.latest_of_next().is_some();
            if entry.waits_on_device() && !is_marked && !entry.is_left {
                self.mark_or_leave(tip, entry);
            }
            let mark = tip.latest_of_next();
            entry.is_bare = mark.is_none_or(Moment::is_start);
        }
        true
    }

    /// Lets the list wait for the driver's own events, for what isn't there yet.
    #[inline(always)]
    fn wait_in(&self, tip: &mut Tip, entry: &mut Entry) -> Result<bool> {
        let mut waits = entry.waits.iter();
        if tip.is_awaited && waits.any(|wait| wait.event.has_mirror_signal(wait.number)) {
            // Who waits for what came before may have to go on so that this wait ends.
            self.mark_awaited(tip)?;
        }
        // With something long after it, the list is to say when it has begun with that.
        let is_long = entry.is_long;
        let waited = match &mut *entry.waits {
            // As a rule.
            [wait] => match self.hold(wait) {
                Held::Done => return Ok(true),
                Held::Host => return Ok(false),
                Held::Device(handle, _companion) => self.append_wait(tip, &[handle], is_long),
            },
            waits => {
                let mut handles = Vec::with_capacity(waits.len());
                let mut held = Vec::with_capacity(waits.len());
                let mut needs_host = false;
                for wait in &mut *waits {
                    match self.hold(wait) {
                        Held::Done => {}
                        Held::Host => {
                            needs_host = true;
                            break;
                        }
                        Held::Device(handle, mirror) => {
                            handles.push(handle);
                            held.push(mirror);
                        }
                    }
                }
                match (needs_host, handles.is_empty()) {
                    (true, _) => Ok(false),
                    (false, true) => return Ok(true),
                    (false, false) => self.append_wait(tip, &handles, is_long),
                }
            }
        };
        if !matches!(waited, Ok(true)) {
            // The list has nothing of it.
            entry.waits.iter_mut().for_each(|wait| wait.promise = None);
        }
        waited
    }

    /// How the list can wait for this.
    #[inline(always)]
    fn hold<'a>(&self, wait: &'a mut WaitPoint) -> Held<'a> {
        let WaitPoint {
            event,
            number,
            promise,
            ..
        } = wait;
        let found = self.find(event, *number);
        // It may have failed meanwhile, which lists don't know.
        match (event.outcome(*number), found) {
            (Outcome::Complete, _) => Held::Done,
            (Outcome::Pending, Some((handle, mirror))) => {
                *promise = Some(mirror.promise);
                Held::Device(handle, mirror)
            }
            (Outcome::Pending, None) => {
                event.request_mirror();
                Held::Host
            }
            (Outcome::Failed(_), _) => Held::Host,
        }
    }

    /// The driver's event in place of this number, if it stands for that; nobody signals it
    /// meanwhile.
    #[inline(always)]
    fn find<'a>(
        &self,
        event: &'a Arc<EventCore>,
        number: u64,
    ) -> Option<(EventHandle, MirrorHold<'a>)> {
        if !event.has_mirror_signal(number) {
            return None;
        }
        let handle = event::to_wait_for(event, &self.core)?;
        // Fails the signal of a process that died: to find what that has signalled with, Intel's
        // driver asks the process, and ends this one where that fails.
        if !event.is_ours(number) {
            event.help_device_wait(number);
        }
        Some((handle, event.hold_mirror(number)?))
    }

    /// Lets the list wait for these, which the entry has: it is kept until the list is past this.
    #[inline(always)]
    fn append_wait(&self, tip: &mut Tip, events: &[EventHandle], is_long: bool) -> Result<bool> {
        let list = tip.list.as_ref().ok_or_else(no_list)?;
        let started = match is_long {
            true => Some(Pooled::take_handle(&self.core)?),
            false => None,
        };
        // SAFETY: the entry has the events, and is kept until the list is past this, as the mark is.
        if let Err(error) = unsafe { list.wait(events, started) } {
            self.give_back(started);
            return Err(error);
        }
        if let Some(started) = started {
            tip.set_mark(started, Moment::start_of(tip.appended));
        } else {
            tip.unmarked += 1;
            tip.has_waits = true;
        }
        Ok(true)
    }

    /// Appends a command's work and the signal of the driver's own event, if that rides along.
    #[inline(always)]
    fn signal_in(&self, tip: &mut Tip, entry: &mut Entry) -> Result<()> {
        if let Some(profile) = entry.profile() {
            Profile::stamp(&profile.started);
        }
        let Some((event, number)) = &entry.signal else {
            return self.work_in(tip, entry, None);
        };
        let mirror = event.begin_mirror_signal(|| event::to_signal(event, &self.core));
        if mirror.is_none() {
            return self.work_in(tip, entry, None);
        }
        let number = *number;
        let appended = self.work_in(tip, entry, mirror);
        entry.has_companion = appended.is_ok();
        if let Some((event, _)) = &entry.signal {
            event.end_mirror_signal(appended.as_ref().map_or(0, |()| number));
        }
        appended
    }

    /// Appends a command's work, and signals an event after it.
    #[inline(always)]
    fn work_in(&self, tip: &mut Tip, entry: &mut Entry, mirror: Option<EventHandle>) -> Result<()> {
        if work::bytes(&entry.work) == 0 {
            return self.signal_bare(tip, entry, mirror);
        }
        let is_awaited = entry.is_awaited();
        let is_long = entry.is_long;
        if is_long {
            // Whether it waits or is busy, could not be told.
            tip.is_awaited |= tip.has_waits;
            self.mark_awaited(tip)?;
        }
        // It is another call then.
        let ahead = if mirror.is_some() {
            tip.latest
        } else {
            tip.earlier
        };
        let wants_mark = is_long || is_awaited && !self.is_ahead(ahead) || tip.unmarked + 1 >= PART;
        let list = tip.list.as_ref().ok_or_else(no_list)?;
        let mark = match mirror {
            None if wants_mark => Some(Pooled::take_handle(&self.core)?),
            _ => None,
        };
        let mut target = Target {
            gpu: &self.gpu,
            core: &self.core,
            list,
            has_begun: false,
        };
        let mut extra = None;
        // SAFETY: the entry has all that the command uses, and is kept until the list is past this;
        // if it never is, or that is not known, what it uses is kept for ever.
        let appended = unsafe { target.append(&entry.work, &mut extra, mark.or(mirror)) };
        let has_begun = target.has_begun;
        if let Some(extra) = extra {
            entry.rare().extra = Some(extra);
        }
        if appended.is_err() {
            match has_begun {
                false => self.give_back(mark),
                // Whether the list has the mark is not known.
                true => {
                    self.lose(mark);
                    self.mark_or_leave(tip, entry);
                }
            }
            return appended;
        }
        if let Some(mark) = mark {
            tip.set_mark(mark, Moment::end_of(tip.appended));
            return Ok(());
        }
        tip.unmarked += 1;
        tip.is_awaited |= is_awaited;
        if wants_mark && let Err(error) = self.mark(tip, tip.appended) {
            // The thread asks for one when it comes to it.
            tracing::debug!(%error, "a command goes without a mark");
        }
        Ok(())
    }

    /// A command that does nothing is done when all before is: it needs a mark only if nothing else
    /// tells that.
    #[inline(always)]
    fn signal_bare(
        &self,
        tip: &mut Tip,
        entry: &mut Entry,
        mirror: Option<EventHandle>,
    ) -> Result<()> {
        let number = tip.appended;
        entry.is_bare = !entry.waits_on_device() || tip.latest_of_next().is_some();
        let is_awaited = entry.is_awaited();
        if let Some(mirror) = mirror {
            let list = tip.list.as_ref().ok_or_else(no_list)?;
            entry.lingers = true;
            // SAFETY: the event stays until the list is past this: the entry has it, and then it
            // lingers.
            unsafe { list.signal(mirror)? };
        } else if is_awaited && tip.unmarked > 0 {
            return self.mark(tip, number);
        }
        tip.is_awaited |= is_awaited && tip.unmarked > 0;
        Ok(())
    }

    /// Sees to it that whoever waits for what is in the list need not wait for what comes next.
    fn mark_awaited(&self, tip: &mut Tip) -> Result<()> {
        match tip.is_awaited && self.ended() < tip.appended {
            true => self.mark(tip, tip.appended - 1),
            false => Ok(()),
        }
    }

    /// Lets the list signal a mark of a command of which it has a part, or keeps what it uses.
    fn mark_or_leave(&self, tip: &mut Tip, entry: &mut Entry) {
        let number = tip.appended;
        if self.mark(tip, number).is_err() {
            self.lose(tip.take_back(number));
            entry.keep_for_ever();
            entry.is_left = true;
        }
    }

    /// Whether the thread waits for this mark. Who submits after that sets another one; if nobody
    /// does, the thread, when it comes to the last.
    fn is_ahead(&self, mark: Option<Moment>) -> bool {
        mark.is_some_and(|moment| self.ended() <= moment.command())
    }

    /// Gives back marks that are in no list, and not signalled.
    fn give_back(&self, marks: impl IntoIterator<Item = EventHandle>) {
        let marks = marks.into_iter();
        marks.for_each(|mark| Pooled::return_to_pool(&self.core, mark));
    }

    /// Gives up marks: the list may signal them as long as it lives.
    pub(super) fn lose(&self, marks: impl IntoIterator<Item = EventHandle>) {
        let marks = marks.into_iter();
        marks.for_each(|mark| Pooled::lose(&self.core, mark));
    }

    /// Lets the list signal a mark when it is done with this command, which is its latest.
    pub(super) fn mark(&self, tip: &mut Tip, command: u64) -> Result<()> {
        let mark = self.append_mark(tip)?;
        tip.set_mark(mark, Moment::end_of(command));
        Ok(())
    }

    /// Lets the list signal a mark.
    pub(super) fn append_mark(&self, tip: &mut Tip) -> Result<EventHandle> {
        let list = tip.list.as_ref().ok_or_else(no_list)?;
        let mark = Pooled::take_handle(&self.core)?;
        // SAFETY: nobody gives it back before the list has signalled it.
        if let Err(error) = unsafe { list.signal(mark) } {
            self.give_back([mark]);
            return Err(error);
        }
        Ok(mark)
    }
}

/// How a list can wait for a signal.
enum Held<'a> {
    /// It need not.
    Done,
    /// Not at all: the host does.
    Host,
    /// By the driver's own event, which nobody signals meanwhile.
    Device(EventHandle, MirrorHold<'a>),
}

fn no_list() -> Error {
    Error::CommandFailed("there is no command list".into())
}
