//! Commands into a list.

use super::driver::{EventHandle, List};
use super::entry::{Awaited, Entry, Marks, Started, is_there};
use super::event;
use super::lane::{Inner, State};
use super::pooled::Pooled;
use super::work::Target;
use crate::backend::Point;
use crate::error::{Error, Result};
use crate::sharing::Profile;
use std::sync::Arc;

/// What a list was told to wait for.
enum Waiting {
    ForNothing,
    /// For driver's events.
    Until(Started),
    /// For nothing either: the host has to wait.
    ByHost,
}

/// Whether the driver's event may tell a list of a signal that is yet to come.
pub(super) fn has_companion(wait: &Point) -> bool {
    wait.event.has_companion_signal(wait.number) && wait.event.result(wait.number).is_none()
}

impl Inner {
    /// Appends a command, after all before it. `false` if the host has to wait for it first, or if
    /// it is not in the list for certain and has failed.
    pub(super) fn append(&self, state: &mut State, index: usize) -> Result<bool> {
        let entry = state.entries.get_mut(index);
        let (Some(list), Some(entry)) = (&state.list, entry) else {
            return Err(Error::CommandFailed("there is no command list".into()));
        };
        let done = Pooled::take(&self.core)?;
        let started = match self.wait_in(list, entry)? {
            Waiting::ForNothing => None,
            Waiting::Until(started) => Some(started),
            Waiting::ByHost => return Ok(false),
        };
        if let Some(profile) = entry.profile() {
            Profile::stamp(&profile.started);
        }
        let worked = self.work_in(list, entry);
        // SAFETY: as below.
        let marked = unsafe { list.signal(done.handle()) };
        entry.marks = Some(Arc::new(Marks { started, done }));
        // With a part of it, the list goes on all the same, and then nothing of it is used.
        entry.failed = worked.err();
        if let Err(error) = marked {
            entry.give_up(&error);
            entry.failed.get_or_insert(error);
            return Ok(false);
        }
        state.appended += 1;
        Ok(true)
    }

    /// Appends what a command does, and the signal of the driver's event if one rides along.
    fn work_in(&self, list: &List, entry: &mut Entry) -> Result<()> {
        let target = Target {
            gpu: &self.gpu,
            core: &self.core,
            list,
        };
        let signal = entry.signal.as_ref();
        let companion = signal
            .filter(|(event, _)| event.wants_companion())
            .and_then(|(event, _)| event::to_signal(event, &self.core))
            .filter(|_| signal.is_some_and(|(event, _)| event.begin_companion_signal()));
        // SAFETY: the entry has all that the command uses, and stays until the list has signalled
        // its event; if it never does, all that is kept for ever.
        let appended = unsafe {
            let mut append = || -> Result<()> {
                target.append(&entry.work, &mut entry.extra)?;
                companion.map_or(Ok(()), |companion| list.signal(companion))
            };
            append()
        };
        if let (Some(_), Some((event, ticket))) = (companion, signal) {
            event.end_companion_signal(appended.as_ref().map_or(0, |()| ticket.number));
        }
        appended
    }

    /// Lets a list wait for the driver's own events, for what isn't there yet.
    fn wait_in(&self, list: &List, entry: &Entry) -> Result<Waiting> {
        let mut awaited: Vec<(EventHandle, _)> = Vec::new();
        for wait in entry.waits.iter().filter(|wait| !is_there(wait)) {
            let companion = || {
                let companion = event::to_wait_for(wait, &self.core)?;
                // Fails the signal of a process that died: to find what that has signalled with,
                // Intel's driver asks the process, and ends this one where that fails.
                wait.event.assist(wait.number);
                Some((companion, wait.event.hold_companion(wait.number)?, wait))
            };
            match companion() {
                // It may have failed, which lists don't know.
                Some((handle, held, wait)) if wait.event.result(wait.number).is_none() => {
                    awaited.push((handle, (held, wait)));
                }
                _ => return Ok(Waiting::ByHost),
            }
        }
        if awaited.is_empty() {
            return Ok(Waiting::ForNothing);
        }
        let started = Pooled::take(&self.core)?;
        let handles: Vec<_> = awaited.iter().map(|(handle, _)| *handle).collect();
        // SAFETY: the entry has the events, and stays until the list is past this, or they are
        // kept below.
        unsafe { list.wait(&handles)? };
        let waits = awaited.into_iter().map(|(_, (held, wait))| Awaited {
            event: Arc::clone(&wait.event),
            number: wait.number,
            promise: held.promise,
        });
        let started = Started {
            waits: waits.collect(),
            event: started,
        };
        // SAFETY: the entry keeps it from now on; if this fails, the list doesn't have it.
        if let Err(error) = unsafe { list.signal(started.event.handle()) } {
            std::mem::forget(started.waits);
            return Err(error);
        }
        Ok(Waiting::Until(started))
    }
}
