//! Commands as a lane keeps them.

use super::ended::Ended;
use super::queue::Notes;
use super::work::{self, Extra};
use crate::error::{Error, Result};
use crate::event_protocol::{Outcome, Ticket};
use crate::hal::common::leak_registry;
use crate::hal::{HostFunction, Submission, WaitList, WaitPoint, Work};
use crate::ipc::{EventCore, Profile};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What writes more bytes than this takes a time of its own: whoever waits for what came before
/// shall not wait for that too.
const SHORT: usize = 64 << 10;

/// That a command is over, for those of other lanes that come after it.
#[derive(Default)]
pub(super) struct Over(Ended);

impl Over {
    pub(super) fn is_over(&self) -> bool {
        self.0.count() > 0
    }

    pub(super) fn set(&self) {
        self.0.add(1);
    }

    pub(super) fn wait(&self) {
        self.0.wait(1, None);
    }
}

/// A command of a lane. Small, since it is moved: what few have is in `rare`.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Entry {
    pub(super) work: Work,
    pub(super) waits: WaitList,
    /// An event, and the number of its signal.
    pub(super) signal: Option<(Arc<EventCore>, u64)>,
    pub(super) rare: Option<Box<Rare>>,
    /// It takes so long that its end is not that of what comes before.
    pub(super) is_long: bool,
    /// Its event had timestamps when it was submitted.
    pub(super) is_timed: bool,
    /// The list signals the driver's own event with it.
    pub(super) has_companion: bool,
    /// The thread is about to append it or to call its function, and nobody else may.
    pub(super) is_taken: bool,
    /// The list has nothing of it that takes time once it has begun: it is done with what is before.
    pub(super) is_bare: bool,
    /// The list signals the driver's own event after all its marks, so it has that a moment longer.
    pub(super) lingers: bool,
    /// The list was seen to have waited for it.
    pub(super) is_begun: bool,
    /// The list may have a part of it that nobody will see done.
    pub(super) is_left: bool,
}

// Two cache lines, which the thread's CPU had last.
const _: () = assert!(size_of::<Entry>() == 128);

#[derive(Default)]
pub(super) struct Rare {
    pub(super) extra: Extra,
    /// Commands of other lanes that it comes after.
    pub(super) after: Vec<Arc<Over>>,
    /// For other lanes, if there can be any.
    pub(super) over: Option<Arc<Over>>,
    /// The driver has refused it.
    pub(super) failed: Option<Error>,
}

impl Rare {
    /// For a command that comes after others and that others may come after.
    pub(super) fn after(after: Vec<Arc<Over>>) -> (Arc<Over>, Option<Box<Self>>) {
        let over = Arc::new(Over::default());
        let rare = Self {
            after,
            over: Some(Arc::clone(&over)),
            ..Self::default()
        };
        (over, Some(Box::new(rare)))
    }
}

impl Entry {
    /// What was submitted, which has nothing left then, with the number of its signal. Its parts are
    /// written one by one, for each command.
    #[inline(always)]
    pub(super) fn new(
        given: &mut Submission,
        number: Option<u64>,
        rare: Option<Box<Rare>>,
    ) -> Self {
        let signal = given.signal.take().zip(number);
        let event = signal.as_ref();
        // It may be switched on or off before it ends.
        let is_timed = event.is_some_and(|(event, _)| event.profile().is_some());
        let is_long = is_timed || work::bytes(&given.work) > SHORT;
        Self {
            is_long,
            is_timed,
            work: mem::take(&mut given.work),
            waits: mem::take(&mut given.waits),
            signal,
            rare,
            has_companion: false,
            is_taken: false,
            is_bare: false,
            lingers: false,
            is_begun: false,
            is_left: false,
        }
    }

    /// Whether the host has something to do before the list can go on with it, other than to wait
    /// for signals.
    pub(super) fn needs_host(&self) -> bool {
        self.is_taken || needs_host(&self.work, self.rare.as_deref())
    }

    /// Whether the list waits for driver's events before it.
    pub(super) fn waits_on_device(&self) -> bool {
        self.waits.iter().any(|wait| wait.promise.is_some())
    }

    /// Whether somebody may wait for its end.
    pub(super) fn is_awaited(&self) -> bool {
        self.signal.is_some() || self.rare.as_ref().is_some_and(|rare| rare.over.is_some())
    }

    /// Whether the driver has refused it.
    pub(super) fn has_failed(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.failed.is_some())
    }

    pub(super) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    pub(super) fn profile(&self) -> Option<&Profile> {
        self.signal.as_ref()?.0.profile()
    }

    /// Keeps what it uses as long as the process lives: the driver may look at it whenever.
    pub(super) fn keep_for_ever(&mut self) {
        for place in work::keeps(&self.work) {
            place.keep.iter().cloned().for_each(leak_registry::leak);
        }
        let events = self.waits.iter().map(|wait| Arc::clone(&wait.event));
        mem::forget(events.collect::<Vec<_>>());
        mem::forget(self.signal.as_ref().map(|(event, _)| Arc::clone(event)));
        if let Some(rare) = &mut self.rare {
            mem::forget(rare.extra.take());
        }
    }

    /// Lets go of what it used, and signals. What it captured and kept may be the user's code. The
    /// event comes back if the list still has it. With `goes_on`, more commands may signal it.
    pub(super) fn end(
        self,
        notes: &Notes,
        result: Result<()>,
        goes_on: bool,
    ) -> Option<Arc<EventCore>> {
        if let Some(profile) = self.profile() {
            Profile::stamp(&profile.ended);
        }
        let rare = self.rare.map(|rare| *rare).unwrap_or_default();
        let result = rare.failed.map_or(result, Err);
        let event = self.signal.as_ref().filter(|_| self.lingers);
        let lingering = event.map(|(event, _)| Arc::clone(event));
        discard((self.work, rare.extra, self.waits));
        match (self.signal, result) {
            (Some((event, number)), result) => {
                event.complete(Ticket::single(number), result.map_err(text_of));
                if goes_on && event.is_mirror_requested() {
                    // For the next time: submitting must not wait for another process to answer.
                    event.fetch_mirror();
                }
            }
            (None, Err(error)) => notes.add(error),
            (None, Ok(())) => {}
        }
        if let Some(over) = rare.over {
            over.set();
        }
        lingering
    }
}

/// Whether the host has something to do before a list can go on with such a command.
pub(super) fn needs_host(work: &Work, rare: Option<&Rare>) -> bool {
    let is_after = |rare: &Rare| rare.after.iter().any(|over| !over.is_over());
    matches!(work, Work::Call(_)) || rare.is_some_and(is_after)
}

/// Completes signals that the list has seen; their owners may not know yet.
pub(super) fn complete_observed(waits: &[WaitPoint]) {
    let told = waits.iter().filter(|wait| wait.promise.is_some());
    for wait in told.filter(|wait| !is_revoked(wait)) {
        wait.event.complete_observed(wait.number);
    }
}

pub(super) fn is_settled(wait: &WaitPoint) -> bool {
    wait.event.outcome(wait.number) != Outcome::Pending
}

/// Whether the device may never learn of it: it has failed, or comes by another list than was
/// promised. What has come otherwise, a device that is busy learns of late.
pub(super) fn is_broken(wait: &WaitPoint) -> bool {
    matches!(wait.event.outcome(wait.number), Outcome::Failed(_)) || is_revoked(wait)
}

fn is_revoked(wait: &WaitPoint) -> bool {
    wait.promise
        .is_some_and(|promise| wait.event.is_revoked(promise))
}

pub(super) fn copy_of(wait: &WaitPoint) -> WaitPoint {
    WaitPoint {
        event: Arc::clone(&wait.event),
        ..*wait
    }
}

/// An error as the waiters for a failed command get to see it.
pub(super) fn text_of(error: Error) -> Arc<str> {
    match error {
        Error::CommandFailed(message) => message,
        error => error.to_string().into(),
    }
}

pub(super) fn discard<T>(what: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(what))) {
        mem::forget(panic);
    }
}

/// Calls a function of the user. A panic must not take the queue and its waiters down.
pub(super) fn call(function: HostFunction) -> Result<()> {
    // Its error's text and drop are the user's code too.
    let call = || function().map_err(|error| error.to_string());
    let message = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(message)) => message,
        Err(panic) => {
            mem::forget(panic);
            "a host function panicked".into()
        }
    };
    Err(Error::CommandFailed(message.into()))
}
