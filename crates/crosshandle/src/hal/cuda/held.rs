//! Commands that a queue keeps back: the driver doesn't have them yet.

use super::call::{Worker, text_of};
use super::device::Gpu;
use super::entry::{Left, Used};
use crate::error::{Error, Result};
use crate::event_protocol::Ticket;
use crate::hal::Submission;
use crate::ipc::EventCore;
use std::sync::Arc;

/// A command as it was submitted.
pub(super) struct Held {
    pub(super) submission: Submission,
    /// The number of its signal, if it was taken already.
    pub(super) ticket: Option<Ticket>,
}

impl Held {
    /// One that goes to the driver as soon as it is submitted, as a rule.
    pub(super) fn new(submission: Submission) -> Self {
        Self {
            submission,
            ticket: None,
        }
    }

    /// Takes the number of its signal, since others are submitted before it runs.
    pub(super) fn number(&mut self, gpu: &Arc<Gpu>) -> Result<()> {
        if let Some(event) = &self.submission.signal
            && self.ticket.is_none()
        {
            self.ticket = Some(issue(event, gpu)?);
        }
        Ok(())
    }

    /// Ends it without running it. What it should have done goes to `left`.
    pub(super) fn skip(self, error: Error, worker: &Worker, left: &mut Left) -> Result<()> {
        left.push(Box::new(Used::new(self.submission.work)));
        match self.submission.signal {
            Some(event) => {
                let ticket = self.ticket.map_or_else(|| event.issue(), Ok)?;
                event.complete(ticket, Err(text_of(error)));
            }
            None => worker.note(error),
        }
        Ok(())
    }

    /// Takes its refusal: it will not run.
    pub(super) fn refuse(mut self, error: &Error, left: &mut Left) {
        self.fail(error);
        left.push(Box::new(Used::refused(self.submission)));
    }

    /// Fails its signal: it will not run. The rest may be the user's, and is for the caller to
    /// drop.
    pub(super) fn fail(&mut self, error: &Error) {
        if let (Some(event), Some(ticket)) = (&self.submission.signal, self.ticket.take()) {
            event.complete(ticket, Err(text_of(error.clone())));
        }
    }
}

/// Takes a number for a signal that a device writes.
#[inline]
pub(super) fn issue(event: &EventCore, gpu: &Arc<Gpu>) -> Result<Ticket> {
    event.mark_device_signals();
    // Before a number is taken, since this may fail.
    event.pin(gpu)?;
    event.issue()
}
