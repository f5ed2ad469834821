//! Commands into a list.

use super::driver::{EventHandle, List};
use super::entry::{Entry, Marks, is_there};
use super::event;
use super::lane::{Inner, State};
use super::pooled::Pooled;
use super::work::Target;
use crate::backend::Point;
use crate::counter::Latest;
use crate::error::{Error, Result};
use crate::sharing::Profile;
use std::sync::Arc;

/// What a list was told to wait for.
enum Waiting {
    ForNothing,
    /// For driver's events; this one is signalled after them.
    Until(Pooled),
    /// For too little, or for something else.
    Unsure,
}

/// The driver's event that tells a list of a signal that is yet to come, as long as nobody signals
/// it anew.
pub(super) fn companion_of(wait: &Point) -> Option<(EventHandle, Latest)> {
    wait.event.latest_companion(wait.number)?;
    if wait.event.result(wait.number).is_some() {
        return None;
    }
    let handle = event::companion(&wait.event)?;
    Some((handle, wait.event.latest_companion(wait.number)?))
}

impl Inner {
    /// Appends a command, after all before it. `false` if the host has to wait for it first.
    pub(super) fn append(&self, state: &mut State, index: usize) -> Result<bool> {
        let entry = state.entries.get_mut(index);
        let (Some(list), Some(entry)) = (&state.list, entry) else {
            return Err(Error::CommandFailed("there is no command list".into()));
        };
        let done = Pooled::take(&self.core)?;
        let started = match self.wait_in(list, entry)? {
            Waiting::ForNothing => None,
            Waiting::Until(started) => Some(started),
            Waiting::Unsure => return Ok(false),
        };
        if let Some(profile) = entry.profile() {
            Profile::stamp(&profile.started);
        }
        let target = Target {
            gpu: &self.gpu,
            core: &self.core,
            list,
        };
        let signal = entry.signal.as_ref();
        let companion = signal
            .filter(|(event, _)| event.wants_companion())
            .and_then(|(event, _)| event::companion(event))
            .filter(|_| signal.is_some_and(|(event, _)| event.begin_companion()));
        // SAFETY: the entry has all that the command uses, and stays until the list has signalled
        // its event; if it never does, it is not dropped.
        let appended = unsafe {
            let mut append = || -> Result<()> {
                target.append(&entry.work, &mut entry.extra)?;
                if let Some(companion) = companion {
                    list.signal(companion)?;
                }
                list.signal(done.handle())
            };
            append()
        };
        if let (Some(_), Some((event, ticket))) = (companion, signal) {
            event.end_companion(appended.as_ref().map_or(0, |()| ticket.number));
        }
        let marks = Arc::new(Marks { started, done });
        if appended.is_err() {
            // The list may have a part of it.
            std::mem::forget(Arc::clone(&marks));
        }
        appended?;
        entry.marks = Some(marks);
        state.appended += 1;
        Ok(true)
    }

    /// Lets a list wait for the driver's own events, for what isn't there yet.
    fn wait_in(&self, list: &List, entry: &mut Entry) -> Result<Waiting> {
        let mut companions = Vec::new();
        for wait in entry.waits.iter().filter(|wait| !is_there(wait)) {
            let Some((handle, latest)) = companion_of(wait) else {
                return Ok(Waiting::Unsure);
            };
            companions.push((handle, latest, Arc::clone(&wait.event)));
        }
        if companions.is_empty() {
            return Ok(Waiting::ForNothing);
        }
        let started = Pooled::take(&self.core)?;
        let handles: Vec<_> = companions.iter().map(|(handle, ..)| *handle).collect();
        // SAFETY: the entry has the events, and stays until the list is past this, or they are
        // kept below.
        let waits = unsafe { list.wait(&handles) };
        let is_still = companions
            .iter()
            .all(|(_, latest, event)| event.is_still(*latest));
        if waits.is_ok() && is_still {
            // SAFETY: the entry keeps it from now on; if this fails, the list doesn't have it.
            unsafe { list.signal(started.handle())? };
            return Ok(Waiting::Until(started));
        }
        // It may wait for a later signal than it should; that one waits for nothing of ours that
        // comes after it, so it does no harm. For its own, the host waits.
        entry.is_for_host = true;
        std::mem::forget(companions);
        waits.map(|()| Waiting::Unsure)
    }
}
