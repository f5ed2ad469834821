//! An event's core: its slot, the owner that this process signals as, and what keeps the slot.
//!
//! `device` has the part that queues of devices use, `native_mirror` the part for queues whose
//! driver has events of its own, and `late_completion` the signals that were completed before their
//! turn.

pub(crate) mod awaiting;
mod device;
mod driver_event;
pub(crate) mod late_completion;
mod native_mirror;
mod profile;

pub(crate) use driver_event::{DriverEvent, DriverEvents, Import};
pub(crate) use native_mirror::MirrorHold;
pub(crate) use profile::{Profile, Timestamps};

use super::attachment::Attachment;
use super::broker::Deadline;
use super::chunks::{Ledger, Sleeper};
use super::event_arena::{EventArena, SlotPlace};
use super::exporter::Exporter;
use super::record::{Credential, Record};
use super::records::AtomicKey;
use crate::error::{Error, PeerDeath, Result};
use crate::event_protocol::{
    Completion, FailureReason, IssueError, Liveness, Outcome, Owner, Signalled, Slot, Target,
    Ticket, WINDOW, WaitError, WaitMode,
};
use crate::handle::HandleKind;
use crate::observe;
use crate::os::{process, sleepers};
use crate::sync::Mutex;
use native_mirror::NativeMirror;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// An event that this process has, as its creator or by opening a handle. Parts that few events
/// need are in boxes of their own, so that opening and closing touches no more than two cache
/// lines.
pub(crate) struct EventCore {
    role: Role,
    slot: SlotPlace,
    // A `Record`, without the gap that it would leave.
    index: u32,
    generation: u64,
    owner: Owner,
    mode: WaitMode,
    /// Whether a handle to the event was ever made, in the process that created it; then `key` is its
    /// key.
    exported: AtomicBool,
    key: AtomicKey,
    /// Present if the event has any of it.
    extras: Option<Box<Extras>>,
    /// Whether this process may have late signals of the event. Set and cleared by `late_completion`.
    has_late: AtomicBool,
    /// The number that this process signalled last: as a rule the next signal starts from it.
    latest: AtomicU64,
    /// The backends whose devices can access the slot: a bit for each.
    pinned: AtomicU32,
    /// The reason why this process's latest failed command failed.
    failure: Mutex<Option<Box<Failure>>>,
    mirror: Option<Arc<NativeMirror>>,
}

// With the two counts of its `Arc` 120 bytes: the most that glibc frees without a look at what is free
// around it. A larger one took half as long again to close, and a sixth to open.
const _: () = assert!(size_of::<EventCore>() <= 104);

/// What few events have.
struct Extras {
    /// The event's arena, if it has one to itself.
    isolated: Option<Arc<EventArena>>,
    /// Present if the event can take timestamps; then it cannot be shared.
    profile: Option<Profile>,
}

impl Extras {
    /// Returns them in a box; `None` if there are none.
    #[inline]
    fn boxed(isolated: Option<Arc<EventArena>>, profile: Option<Profile>) -> Option<Box<Self>> {
        let has_some = isolated.is_some() || profile.is_some();
        has_some.then(|| Box::new(Self { isolated, profile }))
    }
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
    /// Creates an event, which no other process knows yet. `isolated`: it shares its arena with no
    /// other.
    pub(crate) fn create(
        exporter: &Arc<Exporter>,
        mode: WaitMode,
        isolated: bool,
        profiling: bool,
        mirror: Option<Arc<dyn DriverEvents>>,
    ) -> Result<Arc<Self>> {
        let arena = match isolated {
            true => Some(Arc::new(EventArena::create(1)?)),
            false => None,
        };
        let record = exporter.create_event_record(isolated)?;
        let slot = match &arena {
            Some(arena) => {
                arena.slot(0).reset();
                arena.slot(0)
            }
            None => {
                let (common, index) = exporter.arenas().common(record.index).expect("just made");
                common.slot(index)
            }
        };
        // SAFETY: `Self` keeps the exporter, which keeps its arenas, or the event's own arena.
        let slot = unsafe { SlotPlace::new(slot) };
        let role = Role::Creator(Arc::clone(exporter));
        let extras = Extras::boxed(arena, profiling.then(Profile::default));
        let mirror = mirror.map(|events| NativeMirror::new(events, None));
        Ok(Self::new(role, slot, extras, record, mode, mirror))
    }

    /// Opens an event of another context. `isolated`: it has an arena to itself.
    pub(crate) fn open(
        attachment: Arc<Attachment>,
        credential: Credential,
        isolated: bool,
        mode: WaitMode,
        mirror: Option<Arc<dyn DriverEvents>>,
        deadline: &Deadline,
    ) -> Result<Arc<Self>> {
        let (slot, arena) = if isolated {
            let arena = attachment.isolated_event(&credential, deadline)?;
            arena.mark_shared(0);
            // SAFETY: `Self` keeps the event's own arena.
            (unsafe { SlotPlace::new(arena.slot(0)) }, Some(arena))
        } else {
            let (common, index) = attachment.event(&credential, deadline)?;
            common.mark_shared(index);
            // SAFETY: `Self` keeps the attachment, which keeps its arenas.
            (unsafe { SlotPlace::new(common.slot(index)) }, None)
        };
        attachment.hold(&credential, deadline)?;
        let (index, from) = (credential.record.index, &*attachment);
        let name = move || from.name_of(index);
        observe::opened(HandleKind::Event, from.context(), index, 0, name);
        let mirror = mirror.map(|events| NativeMirror::new(events, Some(credential)));
        let role = Role::Opener(attachment);
        let extras = Extras::boxed(arena, None);
        let record = credential.record;
        Ok(Self::new(role, slot, extras, record, mode, mirror))
    }

    #[inline]
    fn new(
        role: Role,
        slot: SlotPlace,
        extras: Option<Box<Extras>>,
        record: Record,
        mode: WaitMode,
        mirror: Option<Arc<NativeMirror>>,
    ) -> Arc<Self> {
        let owner = match &role {
            Role::Creator(_) => Owner::EXPORTER,
            Role::Opener(attachment) => attachment.owner(),
        };
        Arc::new(Self {
            slot,
            role,
            index: record.index,
            generation: record.generation,
            owner,
            mode,
            exported: AtomicBool::new(false),
            key: AtomicKey::default(),
            extras,
            has_late: AtomicBool::new(false),
            latest: AtomicU64::new(0),
            pinned: AtomicU32::new(0),
            failure: Mutex::default(),
            mirror,
        })
    }

    /// Returns the credential to put into a handle; `None` unless this process created the event.
    pub(crate) fn export(&self) -> Result<Option<Credential>> {
        let Role::Creator(exporter) = &self.role else {
            return Ok(None);
        };
        let record = self.record();
        if self.is_exported() {
            let key = self.key.load();
            return Ok(Some(Credential { record, key }));
        }
        let mirror = self.mirror.as_ref().map(|mirror| Arc::clone(mirror) as _);
        let credential = exporter.export_event(record, self.isolated(), mirror)?;
        // A thread that exports it at the same time gets the same key.
        self.key.store(credential.key);
        self.exported.store(true, Ordering::Release);
        Ok(Some(credential))
    }

    fn record(&self) -> Record {
        Record {
            index: self.index,
            generation: self.generation,
        }
    }

    /// Returns whether the event has an arena to itself.
    pub(crate) fn is_isolated(&self) -> bool {
        self.isolated().is_some()
    }

    /// Returns the event's arena, if it has one to itself.
    fn isolated(&self) -> Option<&Arc<EventArena>> {
        self.extras.as_ref()?.isolated.as_ref()
    }

    /// Returns whether a handle to this event was made.
    fn is_exported(&self) -> bool {
        self.exported.load(Ordering::Acquire)
    }

    /// Returns the event's timestamps, if it takes any at the moment.
    #[inline]
    pub(crate) fn profile(&self) -> Option<&Profile> {
        let profile = self.extras.as_ref()?.profile.as_ref();
        profile.filter(|profile| profile.is_on())
    }

    /// Lets the signals from now on take timestamps or not, if the event can take any.
    pub(crate) fn set_profiling(&self, wanted: bool) {
        if let Some(Extras {
            profile: Some(profile),
            ..
        }) = self.extras.as_deref()
        {
            profile.switch(wanted);
        }
    }

    fn arena(&self) -> &EventArena {
        if let Some(arena) = self.isolated() {
            return arena;
        }
        let arenas = match &self.role {
            Role::Creator(exporter) => exporter.arenas(),
            Role::Opener(attachment) => attachment.arenas(),
        };
        let (arena, _) = arenas.common(self.index).expect("the slot is there");
        arena
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
        self
    }

    /// Signals from the host without blocking, and returns the signal's number. The signal
    /// completes at once, or as soon as all earlier ones have finished.
    #[inline]
    pub(crate) fn signal(self: &Arc<Self>) -> Result<u64> {
        observe::signalled();
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
        observe::signalled();
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

    /// Fails all numbers up to `value`, as a command that reports an error would.
    pub(crate) fn fail_value(&self, value: u64, message: &str) -> Result<()> {
        self.check_late_limit()?;
        let tickets = self.slot().issue_up_to(self.owner(), value);
        for ticket in tickets.map_err(explain)? {
            self.complete(ticket, Err(message.into()));
        }
        Ok(())
    }

    /// Fails the numbers that were not submitted, as the death of whoever was to submit them would.
    pub(crate) fn abandon(&self) -> Result<()> {
        self.check_late_limit()?;
        loop {
            let latest = self.slot().issued();
            // While earlier numbers are unfinished, the window starts at those.
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
    pub(crate) fn issue(&self) -> Result<Ticket> {
        observe::signalled();
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
            WaitError::Abandoned => self.abandoned(number),
        }
    }

    /// Returns the error for a number that never comes, since the event's creator has ended.
    #[cold]
    pub(crate) fn abandoned(&self, number: u64) -> Error {
        self.death(number, Some(Owner::EXPORTER))
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

    /// Gives the event a name, if this process created it.
    pub(crate) fn set_name(&self, name: &str) {
        if let Role::Creator(exporter) = &self.role {
            exporter.set_name(self.record(), name);
        }
    }

    /// Returns the event's name, if it has one.
    pub(crate) fn name(&self) -> Option<String> {
        match &self.role {
            Role::Creator(exporter) => Some(exporter.catalog().name(self.index)),
            Role::Opener(attachment) => attachment.name_of(self.index),
        }
        .filter(|name| !name.is_empty())
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

/// What the event's role knows; and sleeping threads are entered into this process's ledger.
impl Liveness for EventCore {
    fn is_dead(&self, owner: Owner) -> bool {
        self.role.liveness().is_dead(owner)
    }

    fn is_abandoned(&self) -> bool {
        self.role.liveness().is_abandoned()
    }

    fn is_known_abandoned(&self) -> bool {
        self.role.liveness().is_known_abandoned()
    }

    fn watch(&self, owner: &dyn Fn() -> Option<Owner>) {
        self.role.liveness().watch(owner);
    }

    fn begin_sleep(&self, number: u64) -> Option<usize> {
        if let Role::Creator(exporter) = &self.role {
            // Nobody asks about an event that nobody else has. The ledger is made once.
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

impl Drop for EventCore {
    #[inline]
    fn drop(&mut self) {
        let exported = *self.exported.get_mut();
        let is_given_back_later =
            *self.has_late.get_mut() && late_completion::give_back_later(self, exported);
        if !is_given_back_later {
            self.role
                .give_back(self.record(), exported, self.isolated());
        }
    }
}

impl Role {
    /// Gives an event's record back, and its arena if it has one to itself. May call a driver.
    #[inline]
    fn give_back(&self, record: Record, exported: bool, isolated: Option<&Arc<EventArena>>) {
        match self {
            Self::Creator(exporter) => retire(exporter, record, exported, isolated),
            Self::Opener(attachment) => {
                attachment.release(record.index);
                observe::closed(HandleKind::Event);
            }
        }
    }

    /// Returns the ledger in which this process counts its opens.
    fn ledger(&self) -> Option<&Ledger> {
        match self {
            Self::Creator(exporter) => exporter.own_ledger_if_any(),
            Self::Opener(attachment) => Some(attachment.ledger()),
        }
    }

    fn liveness(&self) -> &dyn Liveness {
        match self {
            Self::Creator(exporter) => &**exporter,
            Self::Opener(attachment) => &**attachment,
        }
    }
}

/// Frees an event that this process created. May call a driver.
fn retire(exporter: &Exporter, record: Record, exported: bool, isolated: Option<&Arc<EventArena>>) {
    // Kept until importers have closed the event: deaths among them are told there.
    let keep = isolated.map(|arena| Box::new(Arc::clone(arena)) as _);
    exporter.retire(record, exported, keep);
    if exported {
        exporter.reclaim();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::broker::PeerPolicy;
    use crate::ipc::describe::Label;

    #[test]
    fn an_isolated_arena_is_kept_until_importers_have_closed_the_event() {
        let name = format!("xh-isolated-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let exporter = Exporter::new(
            Label::default(),
            PeerPolicy::default(),
            Some(directory.clone()),
            false,
        );
        let exporter = exporter.expect("an exporter");
        let event = EventCore::create(&exporter, WaitMode::LowPower, true, false, None);
        let event = event.expect("an event");
        let exported = event.export().expect("exported").expect("ours");
        let Record { index, .. } = exported.record;
        let ledger = exporter.own_ledger().expect("a ledger");
        let count = ledger.count(index).expect("in the first chunk");
        count.store(1, Ordering::SeqCst);
        drop(event);
        assert!(exporter.arenas().isolated(exported.record).is_some());
        count.store(0, Ordering::SeqCst);
        exporter.reclaim();
        assert!(exporter.arenas().isolated(exported.record).is_none());
        drop(exporter);
        let _ = std::fs::remove_dir(directory);
    }
}
