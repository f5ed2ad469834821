//! Commands as a lane keeps them.

use super::append::has_companion;
use super::driver::is_device_lost;
use super::pooled::Pooled;
use super::queue::Notes;
use super::work::Extra;
use crate::backend::{HostFunction, Point, Work};
use crate::counter::{Promise, Ticket};
use crate::error::{Error, Result};
use crate::sharing::{EventCore, Profile};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// That a command is over, for those of other lanes that come after it.
#[derive(Default)]
pub(super) struct Over {
    is_over: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Over {
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    pub(super) fn set(&self) {
        self.is_over.store(true, Ordering::Release);
        drop(self.lock.lock());
        self.changed.notify_all();
    }

    pub(super) fn wait(&self) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_while(guard, |()| !self.is_over());
        drop(waited);
    }
}

/// A command of a lane.
pub(super) struct Entry {
    /// In its queue.
    pub(super) number: u64,
    pub(super) work: Work,
    pub(super) extra: Extra,
    pub(super) waits: Vec<Point>,
    /// Commands of other lanes.
    pub(super) after: Vec<Arc<Over>>,
    pub(super) signal: Option<(Arc<EventCore>, Ticket)>,
    pub(super) over: Arc<Over>,
    /// The thread is about to append it or to call its function, and nobody else may.
    pub(super) is_taken: bool,
    /// What the list signals. `None` while the command is held.
    pub(super) marks: Option<Arc<Marks>>,
    /// The driver refused a part of it. It has failed, once the list is past the rest.
    pub(super) failed: Option<Error>,
    /// The list may have a part of it that nobody will see done.
    pub(super) is_left: bool,
}

/// How far the list is with a command.
pub(super) struct Marks {
    /// Before the work, if the list waits for driver's events until then.
    pub(super) started: Option<Started>,
    /// Signalled after it.
    pub(super) done: Pooled,
}

/// That a list waits for driver's events.
pub(super) struct Started {
    /// Signalled after all of them.
    pub(super) event: Pooled,
    pub(super) waits: Vec<Awaited>,
}

/// A signal that a list waits for on the device.
pub(super) struct Awaited {
    pub(super) event: Arc<EventCore>,
    pub(super) number: u64,
    pub(super) promise: Promise,
}

impl Awaited {
    /// Whether it has come, or never will.
    pub(super) fn is_settled(&self) -> bool {
        // Fails the signal of a process that died.
        self.event.assist(self.number);
        self.event.result(self.number).is_some()
    }

    /// Whether the device may never learn of it: it has failed, or comes by another list than was
    /// promised. What has come otherwise, a device that is busy learns of late.
    pub(super) fn is_broken(&self) -> bool {
        matches!(self.event.result(self.number), Some(Err(_)))
            || self.event.is_revoked(self.promise)
    }
}

impl Entry {
    /// Whether the host has something to do before the list can go on with it.
    pub(super) fn needs_host(&self) -> bool {
        self.is_taken
            || self.failed.is_some()
            || matches!(self.work, Work::Call(_))
            || self.after.iter().any(|over| !over.is_over())
            || !self
                .waits
                .iter()
                .all(|wait| is_there(wait) || has_companion(wait))
    }

    /// Keeps for ever what a list may use that nobody will see done. After this error of the
    /// driver's it may, unless the device is lost.
    pub(super) fn give_up(&mut self, error: &Error) {
        match is_device_lost(error) {
            true => self.marks = None,
            false => {
                self.leave();
                self.is_left = true;
            }
        }
    }

    /// The same in any case: as if the command had not been appended.
    pub(super) fn leave(&mut self) {
        let keeps = self.work.places().map(|place| place.keep.clone());
        std::mem::forget(keeps.collect::<Vec<_>>());
        std::mem::forget(self.waits.iter().map(copy_of).collect::<Vec<_>>());
        std::mem::forget(self.signal.as_ref().map(|(event, _)| Arc::clone(event)));
        std::mem::forget((self.marks.take(), self.extra.take()));
    }

    pub(super) fn profile(&self) -> Option<&Profile> {
        self.signal.as_ref()?.0.profile()
    }

    /// Lets go of what it used, and signals.
    pub(super) fn end(self, notes: &Notes, result: Result<()>) {
        if let Some(profile) = self.profile() {
            Profile::stamp(&profile.ended);
        }
        // What it captured and kept may be the user's code.
        discard((self.work, self.extra, self.waits, self.marks));
        let result = self.failed.map_or(result, Err);
        match (self.signal, result) {
            (Some((event, ticket)), result) => event.complete(ticket, result.map_err(text_of)),
            (None, Err(error)) => notes.add(error),
            (None, Ok(())) => {}
        }
        self.over.set();
        notes.end(self.number);
    }
}

/// Whether a signal has come, and not as a failure.
pub(super) fn is_there(wait: &Point) -> bool {
    matches!(wait.event.result(wait.number), Some(Ok(())))
}

pub(super) fn copy_of(wait: &Point) -> Point {
    Point {
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
        std::mem::forget(panic);
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
            std::mem::forget(panic);
            "a host function panicked".into()
        }
    };
    Err(Error::CommandFailed(message.into()))
}
