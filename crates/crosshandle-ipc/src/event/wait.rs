//! Waits for events and their results.

use super::{EventCore, Role};
use crate::chunks::Sleeper;
use crate::event_arena::ArenaKey;
use crate::platform::{Instant, Interrupt, Target};
use crosshandle_events::{FailureReason, Liveness, Outcome, Owner, WaitError, WaitMode};
use crosshandle_os::{process, sleepers};
use crosshandle_types::error::{Error, PeerDeath, Result};
use crosshandle_types::observe::trace::{self, Begun, Step};
use crosshandle_types::sync::Deadline;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

impl EventCore {
    /// Fails the unfinished signals of dead processes.
    fn fail_orphans(&self) {
        self.slot().fail_orphans(self.liveness());
    }

    /// Returns the number that a wait without a number waits for, or `None` if that signal is
    /// complete.
    #[inline]
    pub fn awaited(&self) -> Option<u64> {
        self.slot().awaited()
    }

    /// Returns the number of the latest signal, or `None` if there is none or it is complete.
    #[inline]
    pub fn unfinished(&self) -> Option<u64> {
        self.slot().unfinished()
    }

    /// Returns the number that a wait without a number waits for, or `None` if that signal has
    /// completed without an error.
    #[inline]
    pub fn latest_pending(&self) -> Option<u64> {
        self.slot().latest_pending()
    }

    /// Returns the number of the latest signal, or `None` if there is none or it has completed
    /// without an error.
    #[inline]
    pub fn submitted_pending(&self) -> Option<u64> {
        self.slot().submitted_pending()
    }

    pub fn issued(&self) -> u64 {
        self.slot().issued()
    }

    /// Returns the number of the latest signal, without the numbers taken ahead for device code.
    #[inline]
    pub fn submitted(&self) -> u64 {
        self.slot().submitted()
    }

    pub fn completed(&self) -> u64 {
        self.slot().completed()
    }

    /// Returns the state of a signal. If the exporter has ended, it first fails the unfinished
    /// signals of dead processes.
    #[inline]
    pub fn outcome(&self, number: u64) -> Outcome {
        match self.slot().outcome(number) {
            Outcome::Pending if self.is_orphaned() => self.outcome_among_orphans(number),
            outcome => outcome,
        }
    }

    #[cold]
    fn outcome_among_orphans(&self, number: u64) -> Outcome {
        // The exporter has ended, so no process reports the deaths of other importers.
        self.fail_orphans();
        self.slot().outcome(number)
    }

    /// Returns the result of a signal, if it has finished.
    pub fn result(&self, number: u64) -> Option<Result<()>> {
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
    pub fn wait_for(&self, number: u64, timeout: Duration) -> Result<()> {
        self.check_birth()?;
        // A peer on another CPU often signals sooner than the clock can be read.
        let begun = trace::begin();
        let result = match self.look(number) {
            Some(result) => result,
            None => self.wait_longer(number, Deadline::after(timeout)),
        };
        self.trace_wait(begun, number, result.as_ref().err());
        result
    }

    /// Waits for a signal, which may not be submitted yet.
    pub fn wait(&self, number: u64, deadline: Deadline) -> Result<()> {
        self.check_birth()?;
        let begun = trace::begin();
        let result = match self.look(number) {
            Some(result) => result,
            None => self.wait_longer(number, deadline),
        };
        self.trace_wait(begun, number, result.as_ref().err());
        result
    }

    /// Writes a wait that has ended into the timeline, if there is one.
    #[inline]
    pub fn trace_wait(&self, begun: Begun, number: u64, error: Option<&Error>) {
        begun.end(|| Step::Wait(self.traced(), number, error));
    }

    /// Polls a few times whether a signal has finished, unless the wait saves power.
    #[inline]
    fn look(&self, number: u64) -> Option<Result<()>> {
        if self.mode != WaitMode::Spin {
            return None;
        }
        let result = self.target(number).look_if_worthwhile()?;
        Some(result.map_err(|error| self.error_of(number, error)))
    }

    fn wait_longer(&self, number: u64, deadline: Deadline) -> Result<()> {
        self.slot()
            .wait(number, self.mode, deadline.instant(), self.liveness())
            .map_err(|error| self.error_of(number, error))
    }

    pub fn mode(&self) -> WaitMode {
        self.mode
    }

    /// Returns the event's target in a wait for several events.
    pub fn target(&self, number: u64) -> Target<'_> {
        Target {
            slot: self.slot(),
            number,
            liveness: self.liveness(),
        }
    }

    pub fn error_of(&self, number: u64, error: WaitError) -> Error {
        match error {
            WaitError::TimedOut => Error::TimedOut("waiting for an event"),
            WaitError::Failed(reason) => self.failure_of(number, reason),
            WaitError::Abandoned => self.abandoned(number),
        }
    }

    /// Returns the error for a number that is abandoned.
    #[cold]
    pub fn abandoned(&self, number: u64) -> Error {
        let is_orphan = match &self.role {
            Role::Creator(_) => false,
            Role::Opener(attachment) => attachment.is_abandoned(),
        };
        let owner = match is_orphan {
            true => Some(Owner::EXPORTER),
            false => self.slot().latest_death(),
        };
        self.death(number, owner)
    }

    fn arena_key(&self) -> ArenaKey {
        match self.is_isolated() {
            true => ArenaKey::isolated(self.index),
            false => ArenaKey::common(self.index),
        }
    }

    /// Clears the record of processes that ended with the event open, because another process is
    /// about to get the event.
    pub fn forget_deaths(&self) {
        if let Role::Creator(_) = &self.role {
            self.slot().forget_deaths();
        }
    }

    /// Returns the error for a number whose submitter has ended.
    #[cold]
    fn death(&self, number: u64, owner: Option<Owner>) -> Error {
        let (catalog, hung_up_at) = match &self.role {
            Role::Creator(exporter) => (&**exporter.catalog(), 0),
            Role::Opener(attachment) => (attachment.catalog(), attachment.hung_up_at()),
        };
        let peer = owner.map(|owner| catalog.peer(owner)).unwrap_or_default();
        let ended = match peer.ended {
            0 if owner == Some(Owner::EXPORTER) => hung_up_at,
            ended => ended,
        };
        let ended = UNIX_EPOCH.checked_add(Duration::from_nanos(ended));
        let name = catalog.name(self.index);
        Error::PeerDied(Box::new(PeerDeath {
            pid: Some(peer.pid).filter(|pid| *pid != 0),
            program: peer.program,
            ended: ended.filter(|ended| *ended != UNIX_EPOCH),
            event: match name.is_empty() {
                true => self.index.to_string(),
                false => format!("\"{name}\""),
            },
            number,
        }))
    }

    fn failure_of(&self, number: u64, reason: FailureReason) -> Error {
        if let FailureReason::OwnerDied(owner) = reason {
            return self.death(number, owner);
        }
        let failure = self.failure.lock();
        let failure = failure.as_ref().filter(|failure| failure.number == number);
        Error::CommandFailed(failure.map_or_else(
            || "the process that ran it knows why".into(),
            |failure| Arc::clone(&failure.message),
        ))
    }
}

/// Waits until one of `targets` has finished, and returns its index and result. Returns `None` if
/// interrupted. After the deadline, returns index 0 and [`WaitError::TimedOut`].
pub fn wait_any(
    targets: &[Target<'_>],
    interrupt: Option<Interrupt<'_>>,
    mode: WaitMode,
    deadline: Option<Instant>,
) -> Option<(usize, std::result::Result<(), WaitError>)> {
    crosshandle_events::wait_any(targets, interrupt, mode, deadline)
}

/// Liveness by the event's role. Sleeping threads are entered into this process's ledger.
impl Liveness for EventCore {
    fn is_dead(&self, owner: Owner) -> bool {
        self.role.liveness().is_dead(owner)
    }

    fn is_abandoned(&self) -> bool {
        match &self.role {
            Role::Creator(exporter) => {
                exporter.is_deserted(self.index, self.arena_key(), self.slot())
            }
            Role::Opener(attachment) => self.slot().is_left_alone() || attachment.is_abandoned(),
        }
    }

    #[inline]
    fn is_known_abandoned(&self) -> bool {
        match &self.role {
            Role::Creator(exporter) => {
                self.slot().latest_death().is_some()
                    && exporter.is_known_deserted(self.index, self.arena_key(), self.slot())
            }
            Role::Opener(attachment) => {
                self.slot().is_left_alone() || attachment.is_known_abandoned()
            }
        }
    }

    fn is_known_orphan(&self) -> bool {
        self.role.liveness().is_known_orphan()
    }

    fn watch(&self, owner: &dyn Fn() -> Option<Owner>) {
        self.role.liveness().watch(owner);
    }

    fn begin_sleep(&self, number: u64) -> Option<usize> {
        if let Role::Creator(exporter) = &self.role {
            // An event that no other process has needs no entry, because no process asks about it.
            // The ledger is made once.
            if !self.is_exported() || exporter.own_ledger().is_err() {
                return None;
            }
        }
        self.role.ledger()?.enter(Sleeper {
            record: self.index,
            number,
            thread: sleepers::thread()?,
            since: process::monotonic_nanoseconds(),
        })
    }

    fn end_sleep(&self, place: usize) {
        if let Some(ledger) = self.role.ledger() {
            ledger.leave(place);
        }
    }
}
