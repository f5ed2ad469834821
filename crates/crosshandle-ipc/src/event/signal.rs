//! Signals of an event: taking numbers, and completing or failing them.

use super::{EventCore, Failure, late_completion};
use crate::platform::Slot;
use crosshandle_events::{Completion, FailureReason, IssueError, Signalled, Ticket, WINDOW};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::observe;
use crosshandle_types::observe::trace::{self, Step};
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl EventCore {
    /// Signals from the host without blocking, and returns the signal's number. The signal
    /// completes at once, or as soon as all earlier signals have finished.
    #[inline]
    pub fn signal(self: &Arc<Self>) -> Result<u64> {
        self.check_birth()?;
        observe::signalled();
        let begun = trace::begin();
        let latest = self.latest.load(Ordering::Relaxed);
        let number = match self.slot().try_signal_after(latest) {
            Some(number) => {
                self.latest.store(number, Ordering::Relaxed);
                number
            }
            None => self.signal_later(None)?,
        };
        begun.end(|| Step::Signal(self.traced(), number));
        Ok(number)
    }

    /// Signals all numbers up to `value` from the host, like [`signal`](Self::signal).
    pub fn signal_up_to(self: &Arc<Self>, value: u64) -> Result<u64> {
        self.check_birth()?;
        observe::signalled();
        let begun = trace::begin();
        let number = self.signal_later(Some(value))?;
        begun.end(|| Step::Signal(self.traced(), number));
        Ok(number)
    }

    #[cold]
    fn signal_later(&self, value: Option<u64>) -> Result<u64> {
        self.check_late_limit()?;
        let signalled = match value {
            Some(value) => self.slot().signal_up_to(self.owner(), value),
            None => self.slot().signal(self.owner()),
        };
        match signalled.map_err(explain)? {
            Signalled::Complete(number) => Ok(number),
            Signalled::Submitted(tickets) => {
                let number = tickets.last().map_or(0, |ticket| ticket.number);
                for ticket in tickets {
                    self.complete(ticket, Ok(()));
                }
                Ok(number)
            }
        }
    }

    /// Fails all numbers up to `value`, like a command that reports an error.
    pub fn fail_value(&self, value: u64, message: &str) -> Result<()> {
        self.check_birth()?;
        self.check_late_limit()?;
        let tickets = self.slot().issue_up_to(self.owner(), value);
        for ticket in tickets.map_err(explain)? {
            self.complete(ticket, Err(message.into()));
        }
        Ok(())
    }

    /// Fails the numbers that were not submitted, as if their submitter had died.
    pub fn abandon(&self) -> Result<()> {
        self.check_birth()?;
        self.check_late_limit()?;
        loop {
            let latest = self.slot().issued();
            // While earlier numbers are unfinished, the window starts at the oldest of them.
            let last = latest.max(self.slot().completed().saturating_add(WINDOW));
            match self.slot().issue_up_to(self.owner(), last) {
                // Another thread or process was faster.
                Err(IssueError::NotAhead(_) | IssueError::TooFarAhead(_))
                    if self.issued() != latest => {}
                Err(error) => return Err(explain(error)),
                Ok(tickets) => {
                    for ticket in tickets {
                        self.finish(ticket, Some(FailureReason::OwnerDied(None)));
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Takes a number for a command that completes later.
    #[inline]
    pub fn issue(&self) -> Result<Ticket> {
        self.check_birth()?;
        observe::signalled();
        self.check_late_limit()?;
        let ticket = self.slot().issue(self.owner()).map_err(explain)?;
        self.note_issued(ticket.number);
        Ok(ticket)
    }

    /// Calls `submit`, and returns the first number that it takes for a signal of this event on
    /// this thread.
    pub fn number_issued_by(&self, submit: impl FnOnce() -> Result<()>) -> Result<Option<u64>> {
        ISSUED.set(Some((ptr::from_ref(self).addr(), None)));
        let submitted = submit();
        let issued = ISSUED.take();
        submitted?;
        Ok(issued.and_then(|(_, number)| number))
    }

    /// Passes a number to [`number_issued_by`](Self::number_issued_by), if it is active on this
    /// thread.
    #[inline]
    pub fn note_issued(&self, number: u64) {
        if let Some((wanted, None)) = ISSUED.get()
            && wanted == ptr::from_ref(self).addr()
        {
            ISSUED.set(Some((wanted, Some(number))));
        }
    }

    /// Refuses further numbers while this process has too many late signals of the event.
    #[inline]
    fn check_late_limit(&self) -> Result<()> {
        match self.has_late.load(Ordering::Relaxed) {
            true => late_completion::check_limit(self),
            false => Ok(()),
        }
    }

    /// Completes a ticket with a result now, or arranges its completion when its turn comes. Never
    /// blocks.
    pub fn complete(&self, ticket: Ticket, result: Result<(), Arc<str>>) {
        if let Err(message) = &result {
            let mut failure = self.failure.lock();
            *failure = Some(Box::new(Failure {
                number: ticket.number,
                message: Arc::clone(message),
            }));
        }
        let begun = trace::begin();
        let failure = result.err().map(|_| FailureReason::CommandFailed);
        self.finish(ticket, failure);
        begun.end(|| Step::Signal(self.traced(), ticket.number));
    }

    /// Finishes a ticket now, or arranges that it is finished when its turn comes. Never blocks.
    pub(super) fn finish(&self, ticket: Ticket, failure: Option<FailureReason>) {
        if try_finish(self.slot(), ticket, failure) == Completion::TooEarly {
            late_completion::complete_later(self, ticket, failure);
        } else {
            self.finish_due_after(ticket.number);
        }
    }

    /// Finishes this process's late signals whose turn has come because `number` has finished.
    #[inline]
    pub fn finish_due_after(&self, number: u64) {
        if self.has_late.load(Ordering::Relaxed) {
            late_completion::finish_due_after(self, number);
        }
    }
}

thread_local! {
    /// Address of the event whose next number on this thread is wanted, and that number once it is
    /// taken.
    static ISSUED: Cell<Option<(usize, Option<u64>)>> = const { Cell::new(None) };
}

/// Completes or fails a signal, unless it is too early.
pub(super) fn try_finish(
    slot: &Slot,
    ticket: Ticket,
    failure: Option<FailureReason>,
) -> Completion {
    match failure {
        None => slot.complete(ticket),
        Some(reason) => slot.fail(ticket, reason),
    }
}

#[cold]
fn explain(error: IssueError) -> Error {
    match error {
        IssueError::TooManyOwners => Error::LimitReached {
            what: "too many processes have unfinished signals on this event in turns".into(),
            remedy: "wait for some of them before signalling".into(),
        },
        IssueError::Exhausted => Error::LimitReached {
            what: "the event has counted to its end".into(),
            remedy: "create a new one".into(),
        },
        IssueError::SingleSignaller => Error::invalid(
            "only device code of this event's creator signals it, because it was created with a \
             single signaller",
        ),
        IssueError::NotAhead(latest) => Error::invalid(format!(
            "the event's value only grows: it is {latest} already"
        )),
        IssueError::TooFarAhead(most) => Error::invalid(format!(
            "the event's value can be raised to {most} at most in one step"
        )),
    }
}
