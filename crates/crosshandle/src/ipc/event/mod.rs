//! An event's core: its slot, the owner that this process signals as, and what keeps the slot.
//!
//! `device` has the part that queues of devices use, `native_mirror` the part for queues whose
//! driver has events of its own, and `late_completion` the signals that were completed before their
//! turn.

mod device;
mod driver_event;
pub(crate) mod late_completion;
mod native_mirror;
mod profile;

pub(crate) use driver_event::{DriverEvent, DriverEvents, Import};
pub(crate) use native_mirror::MirrorHold;
pub(crate) use profile::{Profile, Timestamps};

use super::arena::{Arena, SlotPlace};
use super::attachment::Attachment;
use super::exporter::Exporter;
use super::records::Record;
use crate::error::{Error, Result};
use crate::event_protocol::{
    Completion, FailureReason, IssueError, Liveness, Outcome, Owner, Signalled, Slot, Target,
    Ticket, WaitError, WaitMode,
};
use crate::sync::Mutex;
use native_mirror::NativeMirror;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An event that this process has, as its creator or by opening a handle. Parts that few events
/// need are in boxes of their own, so that opening and closing touches no more than two cache
/// lines.
pub(crate) struct EventCore {
    role: Role,
    slot: SlotPlace,
    record: Record,
    owner: Owner,
    mode: WaitMode,
    /// Whether a handle to the event was ever made.
    exported: AtomicBool,
    /// Whether this process may have late signals of the event. Set and cleared by `late_completion`.
    has_late: AtomicBool,
    /// Present if the event can take timestamps; then it cannot be shared.
    profile: Option<Box<Profile>>,
    /// The number that this process signalled last: as a rule the next signal starts from it.
    latest: AtomicU64,
    /// The backends whose devices can access the slot: a bit for each.
    pinned: AtomicU32,
    /// The reason why this process's latest failed command failed.
    failure: Mutex<Option<Box<Failure>>>,
    mirror: Option<Arc<NativeMirror>>,
}

/// The reason why a command failed, in words.
struct Failure {
    /// The number of the command's signal.
    number: u64,
    message: Arc<str>,
}

/// This process's role for an event, with what keeps the event's arena.
enum Role {
    /// The process created the event.
    Creator(Arc<Exporter>),
    /// The process opened a handle to the event.
    Opener(Arc<Attachment>),
}

impl EventCore {
    /// Creates an event, which no other process knows yet.
    pub(crate) fn create(
        exporter: &Arc<Exporter>,
        mode: WaitMode,
        profiling: bool,
        mirror: Option<Arc<dyn DriverEvents>>,
    ) -> Result<Arc<Self>> {
        let record = exporter.create_event_record()?;
        let role = Role::Creator(Arc::clone(exporter));
        let profile = profiling.then(Box::default);
        Ok(Self::new(role, record, mode, profile, mirror))
    }

    /// Opens the event of a record of another context.
    pub(crate) fn open(
        attachment: Arc<Attachment>,
        record: Record,
        mode: WaitMode,
        mirror: Option<Arc<dyn DriverEvents>>,
    ) -> Result<Arc<Self>> {
        attachment.hold(record.index, record.generation)?;
        let role = Role::Opener(attachment);
        Ok(Self::new(role, record, mode, None, mirror))
    }

    #[inline]
    fn new(
        role: Role,
        record: Record,
        mode: WaitMode,
        profile: Option<Box<Profile>>,
        mirror: Option<Arc<dyn DriverEvents>>,
    ) -> Arc<Self> {
        let (arena, owner) = match &role {
            Role::Creator(exporter) => (exporter.arena(), Owner::EXPORTER),
            Role::Opener(attachment) => (attachment.arena(), attachment.owner()),
        };
        // SAFETY: the role keeps the arena, and the event keeps its role, which never changes.
        let slot = unsafe { SlotPlace::new(arena, record.index) };
        Arc::new(Self {
            slot,
            role,
            record,
            owner,
            mode,
            exported: AtomicBool::new(false),
            has_late: AtomicBool::new(false),
            profile,
            latest: AtomicU64::new(0),
            pinned: AtomicU32::new(0),
            failure: Mutex::default(),
            mirror: mirror.map(|events| Arc::new(NativeMirror::new(events))),
        })
    }

    /// Returns the record to put into a handle, if this process created the event.
    pub(crate) fn export(&self) -> Option<Record> {
        match &self.role {
            Role::Creator(exporter) => {
                if !self.exported.load(Ordering::Relaxed) {
                    self.offer_mirror(exporter);
                    self.exported.store(true, Ordering::Relaxed);
                }
                Some(self.record)
            }
            Role::Opener(_) => None,
        }
    }

    /// Returns whether a handle to this event was made.
    fn is_exported(&self) -> bool {
        self.exported.load(Ordering::Relaxed)
    }

    /// Returns the event's timestamps, if it takes any at the moment.
    #[inline]
    pub(crate) fn profile(&self) -> Option<&Profile> {
        let profile = self.profile.as_deref();
        profile.filter(|profile| profile.is_on())
    }

    /// Lets the signals from now on take timestamps or not, if the event can take any.
    pub(crate) fn set_profiling(&self, wanted: bool) {
        if let Some(profile) = &self.profile {
            profile.switch(wanted);
        }
    }

    fn arena(&self) -> &Arena {
        match &self.role {
            Role::Creator(exporter) => exporter.arena(),
            Role::Opener(attachment) => attachment.arena(),
        }
    }

    #[inline]
    fn slot(&self) -> &Slot {
        self.slot.get()
    }

    /// Returns the owner that this process signals the event as.
    #[inline]
    fn owner(&self) -> Owner {
        self.owner
    }

    fn liveness(&self) -> &dyn Liveness {
        self.role.liveness()
    }

    /// Signals from the host without blocking, and returns the signal's number. The signal
    /// completes at once, or as soon as all earlier ones have finished.
    #[inline]
    pub(crate) fn signal(self: &Arc<Self>) -> Result<u64> {
        let latest = self.latest.load(Ordering::Relaxed);
        match self.slot().try_signal_after(latest) {
            Some(number) => {
                self.latest.store(number, Ordering::Relaxed);
                Ok(number)
            }
            None => self.signal_later(None),
        }
    }

    /// Signals all numbers up to `value` from the host, as [`signal`](Self::signal) does.
    pub(crate) fn signal_up_to(self: &Arc<Self>, value: u64) -> Result<u64> {
        self.signal_later(Some(value))
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

    /// Takes a number for a command that completes later.
    #[inline]
    pub(crate) fn issue(&self) -> Result<Ticket> {
        self.check_late_limit()?;
        self.slot().issue(self.owner()).map_err(explain)
    }

    /// Refuses further numbers while too many of this process's signals of the event are late.
    #[inline]
    fn check_late_limit(&self) -> Result<()> {
        match self.has_late.load(Ordering::Relaxed) {
            true => late_completion::check_limit(self),
            false => Ok(()),
        }
    }

    /// Completes a ticket with a result, or has it completed when its turn comes. Never blocks.
    pub(crate) fn complete(&self, ticket: Ticket, result: Result<(), Arc<str>>) {
        if let Err(message) = &result {
            let mut failure = self.failure.lock();
            *failure = Some(Box::new(Failure {
                number: ticket.number,
                message: Arc::clone(message),
            }));
        }
        let failure = result.err().map(|_| FailureReason::CommandFailed);
        self.finish(ticket, failure);
    }

    /// Finishes a ticket, or has it finished when its turn comes. Never blocks.
    fn finish(&self, ticket: Ticket, failure: Option<FailureReason>) {
        if try_finish(self.slot(), ticket, failure) == Completion::TooEarly {
            late_completion::complete_later(self, ticket, failure);
        } else {
            self.finish_due_after(ticket.number);
        }
    }

    /// Finishes this process's late signals whose turn has come because `number` has finished.
    #[inline]
    fn finish_due_after(&self, number: u64) {
        if self.has_late.load(Ordering::Relaxed) {
            late_completion::finish_due_after(self, number);
        }
    }

    /// Fails the unfinished signals of dead processes.
    fn fail_orphans(&self) {
        self.slot().fail_orphans(self.liveness());
    }

    /// Returns the number to wait for now, unless all signals are complete.
    #[inline]
    pub(crate) fn unfinished(&self) -> Option<u64> {
        self.slot().unfinished()
    }

    /// Returns the number of the latest signal, unless it has completed without an error.
    #[inline]
    pub(crate) fn latest_pending(&self) -> Option<u64> {
        self.slot().latest_pending()
    }

    pub(crate) fn issued(&self) -> u64 {
        self.slot().issued()
    }

    pub(crate) fn completed(&self) -> u64 {
        self.slot().completed()
    }

    /// Returns the state of a signal. If the exporter is gone, first fails the signals that dead
    /// processes left unfinished.
    #[inline]
    pub(crate) fn outcome(&self, number: u64) -> Outcome {
        match self.slot().outcome(number) {
            Outcome::Pending if self.is_orphaned() => self.outcome_among_orphans(number),
            outcome => outcome,
        }
    }

    #[cold]
    fn outcome_among_orphans(&self, number: u64) -> Outcome {
        // The exporter, which told of other importers' deaths, is gone.
        self.fail_orphans();
        self.slot().outcome(number)
    }

    /// Returns the result of a signal, if it has finished.
    pub(crate) fn result(&self, number: u64) -> Option<Result<()>> {
        match self.outcome(number) {
            Outcome::Pending => None,
            Outcome::Complete => Some(Ok(())),
            Outcome::Failed(reason) => Some(Err(self.failure_of(number, reason))),
        }
    }

    #[inline]
    fn is_orphaned(&self) -> bool {
        match &self.role {
            Role::Creator(_) => false,
            Role::Opener(attachment) => attachment.is_hung_up(),
        }
    }

    /// Waits for a signal for at most `timeout`.
    pub(crate) fn wait_for(&self, number: u64, timeout: Duration) -> Result<()> {
        // A peer on another CPU often answers sooner than the clock can be read.
        match self.look(number) {
            Some(result) => result,
            None => self.wait_longer(number, Instant::now().checked_add(timeout)),
        }
    }

    /// Waits for a signal, submitted or not.
    pub(crate) fn wait(&self, number: u64, deadline: Option<Instant>) -> Result<()> {
        match self.look(number) {
            Some(result) => result,
            None => self.wait_longer(number, deadline),
        }
    }

    /// Looks a few times whether a signal has finished, unless the wait saves power.
    #[inline]
    fn look(&self, number: u64) -> Option<Result<()>> {
        if self.mode != WaitMode::Spin {
            return None;
        }
        let result = self.target(number).look_if_worthwhile()?;
        Some(result.map_err(|error| self.error_of(number, error)))
    }

    fn wait_longer(&self, number: u64, deadline: Option<Instant>) -> Result<()> {
        self.slot()
            .wait(number, self.mode, deadline, self.liveness())
            .map_err(|error| self.error_of(number, error))
    }

    pub(crate) fn mode(&self) -> WaitMode {
        self.mode
    }

    /// Returns the event's part in a wait for several.
    pub(crate) fn target(&self, number: u64) -> Target<'_> {
        Target {
            slot: self.slot(),
            number,
            liveness: self.liveness(),
        }
    }

    pub(crate) fn error_of(&self, number: u64, error: WaitError) -> Error {
        match error {
            WaitError::TimedOut => Error::TimedOut("waiting for an event"),
            WaitError::Failed(reason) => self.failure_of(number, reason),
            WaitError::Abandoned => Error::PeerDied,
        }
    }

    fn failure_of(&self, number: u64, reason: FailureReason) -> Error {
        // The owner says which process died.
        if let FailureReason::OwnerDied(_owner) = reason {
            return Error::PeerDied;
        }
        let failure = self.failure.lock();
        let failure = failure.as_ref().filter(|failure| failure.number == number);
        Error::CommandFailed(failure.map_or_else(
            || "the process that ran it knows why".into(),
            |failure| Arc::clone(&failure.message),
        ))
    }
}

impl Drop for EventCore {
    fn drop(&mut self) {
        let exported = *self.exported.get_mut();
        let is_given_back_later =
            *self.has_late.get_mut() && late_completion::give_back_later(self, exported);
        if !is_given_back_later {
            self.role.give_back(self.record, exported);
        }
    }
}

impl Role {
    /// Gives an event's record back. May call a driver.
    fn give_back(&self, record: Record, exported: bool) {
        match self {
            Self::Creator(exporter) => {
                exporter.retire(record, exported, None);
                if exported {
                    exporter.reclaim();
                }
            }
            Self::Opener(attachment) => attachment.release(record.index),
        }
    }

    fn liveness(&self) -> &dyn Liveness {
        match self {
            Self::Creator(exporter) => &**exporter,
            Self::Opener(attachment) => &**attachment,
        }
    }
}

/// Completes or fails a signal, unless it is too early.
fn try_finish(slot: &Slot, ticket: Ticket, failure: Option<FailureReason>) -> Completion {
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
        IssueError::NotAhead(latest) => Error::invalid(format!(
            "the event's value only grows: it is {latest} already"
        )),
        IssueError::TooFarAhead(most) => Error::invalid(format!(
            "the event's value can be raised to {most} at most in one step"
        )),
    }
}
