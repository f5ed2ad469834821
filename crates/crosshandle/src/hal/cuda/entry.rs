//! Commands as a queue keeps them.

use super::call::{Job, text_of};
use super::work::Extra;
use crate::error::Error;
use crate::event_protocol::{RING, Ticket};
use crate::hal::{Submission, WaitList, Work};
use crate::ipc::EventCore;
use std::sync::Arc;

/// A command under way, with all that it uses.
#[derive(Default)]
pub(super) struct Entry {
    /// The event that it signals, and what the device writes, unless the host signals.
    pub(super) signal: Option<Arc<EventCore>>,
    pub(super) ticket: Option<Ticket>,
    pub(super) _waits: WaitList,
    /// Calls of the driver that it took, at most.
    pub(super) calls: u32,
    /// What else it uses: most commands only signal and wait.
    pub(super) used: Option<Box<Used>>,
}

/// What commands used that are done or were refused, to be dropped without a lock: it may be the
/// user's.
pub(super) type Left = Vec<Box<Used>>;

/// What a command uses that does something.
pub(super) struct Used {
    pub(super) work: Work,
    pub(super) extra: Extra,
    /// What signals instead of the device.
    pub(super) job: Option<Arc<Job>>,
    /// What it should have waited for and signalled, if it was refused: the last that keeps an
    /// event may be among it.
    _events: Option<Box<(WaitList, Option<Arc<EventCore>>)>>,
}

impl Used {
    pub(super) fn new(work: Work) -> Self {
        Self {
            work,
            extra: Extra::None,
            job: None,
            _events: None,
        }
    }

    /// What would be used by a command that was not submitted.
    pub(super) fn refused(submission: Submission) -> Self {
        Self {
            _events: Some(Box::new((submission.waits, submission.signal))),
            ..Self::new(submission.work)
        }
    }

    /// Fails its job, if it has one that hasn't begun.
    pub(super) fn cancel(&mut self, error: &Error) {
        if let Some(function) = self.job.as_ref().and_then(|job| job.cancel(error)) {
            self.work = Work::Call(function);
        }
    }
}

impl Entry {
    /// It is done.
    pub(super) fn settle(self) {
        if let (Some(event), Some(ticket)) = (self.signal, self.ticket) {
            event.finish_device_signal(ticket.number);
        }
    }

    /// Whether an earlier one need not be settled if this is.
    pub(super) fn settles(&self, earlier: &Self) -> bool {
        match (&self.signal, &earlier.signal, self.ticket, earlier.ticket) {
            (Some(event), Some(other), Some(ticket), Some(before)) => {
                Arc::ptr_eq(event, other) && ticket.number == before.number + RING
            }
            _ => false,
        }
    }

    /// It never will be.
    pub(super) fn fail(&mut self, error: &Error) {
        if let Some(used) = &mut self.used {
            used.cancel(error);
        }
        // What the device wrote before it stopped stays written.
        if let (Some(event), Some(ticket)) = (&self.signal, self.ticket) {
            event.complete(ticket, Err(text_of(error.clone())));
        }
    }
}
