//! Queues: commands run in order, beside the host.

use crate::api::command::{Command, LATEST};
use crate::api::event::Event;
use crate::error::{Error, Result};
use crate::event_protocol::Outcome;
use crate::hal::{BackendQueue, Submission, WaitList, WaitPoint, Work};
use crate::handle::BackendKind;
use crate::types::{NativeObject, QueueOrder};
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs commands on a device. Any thread may submit; dropping it lets what was submitted run on.
pub struct Queue {
    inner: Box<dyn BackendQueue>,
    order: QueueOrder,
    backend: BackendKind,
}

impl Queue {
    pub(crate) fn new(
        inner: Box<dyn BackendQueue>,
        order: QueueOrder,
        backend: BackendKind,
    ) -> Self {
        Self {
            inner,
            order,
            backend,
        }
    }

    /// In which order it runs commands.
    pub fn order(&self) -> QueueOrder {
        self.order
    }

    /// The driver's own queue, for programs that submit to it too: what they submit runs in the
    /// order of the calls, among this queue's barriers where its own order is free. `None` where
    /// there is no such thing. From the first call on, [`finish`](Self::finish) and
    /// [`is_idle`](Self::is_idle) count the program's commands too.
    pub fn native(&self) -> Option<NativeObject> {
        let native = self.inner.native()?;
        Some(NativeObject::new(self.backend, native.share()))
    }

    /// Submits a command.
    ///
    /// # Errors
    /// What the driver or the system refuses at once. A command that fails later fails the event
    /// it signals; without one, [`finish`](Self::finish) says so.
    #[inline]
    pub fn submit(&self, mut command: Command) -> Result<()> {
        let result = self.hand_on(&mut command.submission);
        // Nothing is left in it that would have to be dropped.
        let Command { submission } = command;
        mem::forget(submission);
        result
    }

    /// Submits it, and leaves nothing in it.
    fn hand_on(&self, submission: &mut Submission) -> Result<()> {
        if !submission.waits.is_empty() {
            look_at_waits(submission);
        }
        self.run(submission)
    }

    /// The same, with what it waits for looked at.
    #[inline(always)]
    fn run(&self, submission: &mut Submission) -> Result<()> {
        let checked = self.check(submission);
        let result = checked.and_then(|()| self.inner.submit(submission));
        if !submission.is_taken() {
            drop(submission.take());
        }
        result
    }

    /// Refuses what this queue cannot run.
    #[inline(always)]
    fn check(&self, submission: &mut Submission) -> Result<()> {
        match &submission.work {
            Work::Marker => {}
            Work::Call(_) => submission.may_fail = true,
            Work::Native(_) if self.inner.native().is_none() => {
                return Err(Error::Unsupported(
                    "there is no driver's queue behind this one".into(),
                ));
            }
            _ if self.backend == BackendKind::Host && !submission.is_on_host => {
                return Err(Error::Unsupported(
                    "the host cannot access this device's memory directly; copy it with a queue of \
                     the device"
                        .into(),
                ));
            }
            _ => {}
        }
        if submission.may_fail
            && let Some(event) = &submission.signal
        {
            event.mark_fallible();
        }
        Ok(())
    }

    /// Signals an event after everything submitted before.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn signal(&self, event: &Event) -> Result<()> {
        let mut barrier = Submission::barrier();
        barrier.signal = Some(Arc::clone(event.core()));
        let result = self.run(&mut barrier);
        mem::forget(barrier);
        result
    }

    /// Lets everything submitted later wait for an event's latest signal.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn wait(&self, event: &Event) -> Result<()> {
        let mut barrier = Submission::barrier();
        if let Some(latest) = event.core().latest_pending() {
            barrier.waits = WaitList::One(WaitPoint::new(event.core(), latest));
            barrier.may_fail = event.core().is_fallible();
        }
        let result = self.run(&mut barrier);
        mem::forget(barrier);
        result
    }

    /// Makes sure that what was submitted will run without further calls.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    /// Waits until everything submitted is done. What other threads submit meanwhile may be waited
    /// for too, or not.
    ///
    /// # Errors
    /// Once, the first error of a command that signals no event.
    pub fn finish(&self) -> Result<()> {
        self.inner.finish(None)
    }

    /// Waits until everything submitted is done, for at most `timeout`.
    ///
    /// # Errors
    /// [`Error::TimedOut`](crate::Error::TimedOut); as [`finish`](Self::finish).
    pub fn finish_timeout(&self, timeout: Duration) -> Result<()> {
        self.inner.finish(Instant::now().checked_add(timeout))
    }

    /// Whether everything submitted is done.
    pub fn is_idle(&self) -> bool {
        self.inner.is_idle()
    }
}

/// Gives waits for latest signals their numbers, leaves out what is there, and sees whether the
/// others may fail.
fn look_at_waits(submission: &mut Submission) {
    submission.waits.retain(|wait| {
        if wait.number != LATEST {
            return wait.event.outcome(wait.number) != Outcome::Complete;
        }
        let Some(latest) = wait.event.latest_pending() else {
            return false;
        };
        wait.number = latest;
        true
    });
    let mut waits = submission.waits.iter();
    submission.may_fail = waits.any(|wait| wait.event.is_fallible());
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("order", &self.order)
            .field("is_idle", &self.is_idle())
            .finish_non_exhaustive()
    }
}
