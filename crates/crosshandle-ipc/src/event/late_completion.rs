//! Late completions: signals that were completed before their turn.
//!
//! Signal *n + 7* completes only after signal *n*. A thread that completes it earlier leaves it
//! here, so that neither a caller nor a queue waits for another process's signal. This is rare,
//! because eight signals of one event must be unfinished at the same time.
//!
//! Usually the thread of this process that completes the signal before it also completes a late
//! signal. If other processes or devices delay the earlier signal, a job waits for it like any
//! waiter. Signals of one word complete in order, so only the first late signal of each word is
//! ever checked.
//!
//! Late signals belong to the exporter or the attachment of the event, and end with it. Other
//! processes then treat them like those of a dead process. If an event is dropped while it has late
//! signals, its record is given back after the last of them.

use super::signal::try_finish;
use super::wait::wait_any;
use super::{EventCore, Role};
use crate::attachment::Attachment;
use crate::event_arena::{EventArena, EventArenas, SlotPlace};
use crate::exporter::Exporter;
use crate::platform::{self, AtomicU64, Interrupt, Ordering, Target};
use crate::record::Record;
use crosshandle_events::{
    Completion, FailureReason, Liveness, Owner, RING, Ticket, WaitError, WaitMode,
};
use crosshandle_os::fork::PerProcess;
use crosshandle_os::threads::{background, driver_jobs};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Maximum number of late signals of one event in one process. Further signals are refused. That
/// many take about 400 KiB.
const MAX_LATE_SIGNALS: usize = 4096;

/// Maximum number of late signals of one word that are completed before the lock is released, which
/// takes some microseconds.
const LATE_BATCH: usize = 64;

/// Interval at which the late-completion job checks whether the awaited processes are alive. It
/// limits how late an unreported death is noticed.
const LATE_COMPLETION_INTERVAL: Duration = Duration::from_millis(40);

/// Maximum number of words of all events that the late-completion job waits for at a time. If there
/// are more, it waits for them in rotation. The kernel can watch 128 words at once.
const MAX_LATE_WORDS: usize = 120;

/// Maximum time that a thread which ends a context waits until the late-completion job releases the
/// context. It is exceeded only if a system call hangs.
const LATE_ROUND_WAIT: Duration = Duration::from_millis(100);

/// Identifies an event by the address of its exporter or attachment and by its record.
type Key = (usize, u32);

/// The parts of an event that the job needs. They keep the event's memory, but no driver objects.
struct KeptSlot {
    slot: SlotPlace,
    _arenas: Arc<EventArenas>,
    /// The event's own arena, if it has one.
    isolated: Option<Arc<EventArena>>,
    role: WeakRole,
}

/// An event's late signals.
struct LateEvent {
    kept: Arc<KeptSlot>,
    record: Record,
    /// The late signals of each word, by number.
    words: [BTreeMap<u64, Late>; RING as usize],
    /// Number of signals in `words`.
    unfinished: usize,
    /// Number of opens of the event that ended before its last signal. After that signal, the job
    /// gives the record back once for each.
    given_back_later: u32,
    /// Whether a handle of the event was ever made.
    exported: bool,
}

/// A signal that must be finished when its turn has come.
#[derive(Clone, Copy)]
struct Late {
    ticket: Ticket,
    failure: Option<FailureReason>,
}

struct LateSignals {
    events: BTreeMap<Key, LateEvent>,
    has_job: bool,
    /// The job's thread, and the exporters and attachments of the events that it currently uses.
    holder: Option<(ThreadId, BTreeSet<usize>)>,
}

static LATE: PerProcess<Mutex<LateSignals>> = PerProcess::new(|| {
    Mutex::new(LateSignals {
        events: BTreeMap::new(),
        has_job: false,
        holder: None,
    })
});

/// A word whose upper half is raised when the job must check the signals again.
static CHANGES: AtomicU64 = AtomicU64::new(0);
/// Whether the job is currently finishing signals, or handing on the work after an event's last
/// late signal. Changed under the lock.
static IS_IN_ROUND: PerProcess<AtomicBool> = PerProcess::new(AtomicBool::default);
/// Notified when the job releases the events that it has used.
static ROUND_ENDED: PerProcess<Condvar> = PerProcess::new(Condvar::new);

/// Finishes a ticket as soon as the earlier signals allow it.
pub(super) fn complete_later(core: &EventCore, ticket: Ticket, failure: Option<FailureReason>) {
    if core.is_inherited() {
        return;
    }
    let key = key(core);
    let ends_with_it = match &core.role {
        Role::Creator(exporter) => exporter.ends_with_it(),
        Role::Opener(attachment) => attachment.ends_with_it(),
    };
    ends_with_it.get_or_init(|| Box::new(Ending(key.0)));
    let mut late = LATE.lock();
    core.has_late.store(true, Ordering::Relaxed);
    let new = || LateEvent::of(core);
    let event = late.events.entry(key).or_insert_with(new);
    let is_first = event.add(Late { ticket, failure });
    let had_job = std::mem::replace(&mut late.has_job, true);
    drop(late);
    if is_first {
        // Its turn may have come before it was in the list.
        finish_due(key, ticket.number);
        notify_job();
    }
    if had_job {
        // The job may still wait for a thread.
        background::start_missing_threads();
    } else {
        let mut job = Job::default();
        background::repeat(Duration::ZERO, move || job.round());
    }
}

/// Fails if an event has the maximum number of late signals.
#[cold]
pub(super) fn check_limit(core: &EventCore) -> Result<()> {
    let late = LATE.lock();
    let event = late.events.get(&key(core));
    match event.is_some_and(|event| event.unfinished >= MAX_LATE_SIGNALS) {
        true => Err(Error::LimitReached {
            what: format!(
                "{MAX_LATE_SIGNALS} signals of this event wait for their turn behind one that is \
                 unfinished"
            ),
            remedy: "wait for the event before signalling".into(),
        }),
        false => Ok(()),
    }
}

/// Finishes the late signals of an event whose turn has come because `number` has finished.
#[cold]
pub(super) fn finish_due_after(core: &EventCore, number: u64) {
    if !finish_due(key(core), number) {
        let late = LATE.lock();
        if !late.events.contains_key(&key(core)) {
            core.has_late.store(false, Ordering::Relaxed);
        }
    }
}

/// Lets the last late signal give back the event's record. Returns `false` if there is no late
/// signal.
#[cold]
pub(super) fn give_back_later(core: &EventCore, exported: bool) -> bool {
    if core.is_inherited() {
        return true;
    }
    let mut late = LATE.lock();
    let Some(event) = late.events.get_mut(&key(core)) else {
        return false;
    };
    event.given_back_later += 1;
    event.exported |= exported;
    true
}

/// Ends the late signals of an exporter or attachment, given by its address, when this is dropped.
struct Ending(usize);

impl Drop for Ending {
    fn drop(&mut self) {
        forget(self.0);
    }
}

/// Removes the late signals of an exporter or attachment, and waits until the job has released it.
/// Usually there is nothing to wait for.
fn forget(role: usize) {
    let mut late = LATE.lock();
    let is_ended = |key: &Key, _: &mut LateEvent| key.0 == role;
    let keys = (role, 0)..=(role, u32::MAX);
    let ended: Vec<_> = late.events.extract_if(keys, is_ended).collect();
    let own = thread::current().id();
    let is_held = move |late: &mut LateSignals| {
        let holder = late.holder.as_ref();
        holder.is_some_and(|(thread, roles)| *thread != own && roles.contains(&role))
    };
    if is_held(&mut late) {
        drop(late);
        notify_job();
        drop(ROUND_ENDED.wait_timeout_while(LATE.lock(), LATE_ROUND_WAIT, is_held));
    } else {
        drop(late);
    }
    // The lock is released first, because the drop may free the last of the event's memory.
    drop(ended);
}

/// Waits until the job has handed on the work that it found. Usually there is nothing to wait for.
///
/// Must be called before the wait for driver jobs. The work after an event's last late signal may
/// call a driver, and drivers crash if that happens while the process ends.
#[inline]
pub fn wait_for_round() {
    // A thread that saw a signal of this round complete also sees this flag.
    if IS_IN_ROUND.load(Ordering::Relaxed) {
        wait_for_round_end();
    }
}

#[cold]
fn wait_for_round_end() {
    // The job does not wait for itself.
    if background::is_own_thread() {
        return;
    }
    let is_in_round = |_: &mut LateSignals| IS_IN_ROUND.load(Ordering::Relaxed);
    let _ = ROUND_ENDED.wait_timeout_while(LATE.lock(), LATE_ROUND_WAIT, is_in_round);
}

fn key(core: &EventCore) -> Key {
    (core.role.address(), core.index)
}

fn notify_job() {
    CHANGES.fetch_add(1 << 32, Ordering::SeqCst);
    platform::wake_all(&CHANGES);
}

/// Finishes the late signals of an event in the word of `number`, if their turn has come. Returns
/// whether the event has other late signals left.
fn finish_due(key: Key, number: u64) -> bool {
    loop {
        let mut late = LATE.lock();
        let Some(event) = late.events.get_mut(&key) else {
            return false;
        };
        if event.finish_batch((number % RING) as usize) {
            // Other threads may take the lock between batches.
            continue;
        }
        if event.unfinished > 0 {
            return true;
        }
        let ended = late.events.remove(&key);
        drop(late);
        if let Some(ended) = ended {
            ended.give_back();
        }
        return false;
    }
}

impl LateEvent {
    fn of(core: &EventCore) -> Self {
        let arenas = match &core.role {
            Role::Creator(exporter) => Arc::clone(exporter.arenas()),
            Role::Opener(attachment) => attachment.shared_arenas(),
        };
        // SAFETY: `KeptSlot` keeps the arena that contains the slot.
        let slot = unsafe { SlotPlace::new(core.slot()) };
        Self {
            kept: Arc::new(KeptSlot {
                slot,
                _arenas: arenas,
                isolated: core.isolated().cloned(),
                role: WeakRole::of(&core.role),
            }),
            record: core.record(),
            words: Default::default(),
            unfinished: 0,
            given_back_later: 0,
            exported: false,
        }
    }

    /// Adds a signal, and returns whether it is the first late one of its word.
    fn add(&mut self, late: Late) -> bool {
        let number = late.ticket.number;
        let word = &mut self.words[(number % RING) as usize];
        word.insert(number, late);
        self.unfinished += 1;
        word.first_key_value()
            .is_some_and(|(first, _)| *first == number)
    }

    /// Finishes a limited number of signals of a word whose turn has come. Returns whether more may
    /// be left.
    fn finish_batch(&mut self, word: usize) -> bool {
        for _ in 0..LATE_BATCH {
            let Some(first) = self.words[word].first_entry() else {
                return false;
            };
            let Late { ticket, failure } = *first.get();
            if try_finish(self.kept.slot.get(), ticket, failure) == Completion::TooEarly {
                return false;
            }
            first.remove();
            self.unfinished -= 1;
        }
        true
    }

    /// Releases the records of opens that ended in the meantime.
    fn give_back(self) {
        if self.given_back_later == 0 {
            return;
        }
        // A job does this, because it may call a driver.
        driver_jobs::run(move || {
            if let Some(role) = self.kept.role.upgrade() {
                for _ in 0..self.given_back_later {
                    let isolated = self.kept.isolated.as_ref();
                    role.give_back(self.record, self.exported, isolated);
                }
            }
        });
    }
}

/// The job that finishes signals that other processes and devices delay.
#[derive(Default)]
struct Job {
    /// Where the next round begins, if there are more words than one round can wait for.
    next: Key,
    /// Words that were reported finished although nothing could be finished, which a hostile peer
    /// can cause. The job ignores them until `stuck_until`.
    stuck: BTreeSet<(Key, u64)>,
    stuck_until: Option<Instant>,
}

/// A word that the job waits for.
struct Wanted {
    key: Key,
    kept: Arc<KeptSlot>,
    /// The number of the word's first late signal.
    first: u64,
    /// The earlier signal on this word, which must finish before `first`.
    number: u64,
}

impl Job {
    /// Waits until the turn of some late signals may have come, and finishes those. Returns whether
    /// signals are left.
    fn round(&mut self) -> bool {
        let expected = (CHANGES.load(Ordering::SeqCst) >> 32) as u32;
        let now = Instant::now();
        if self.stuck_until.is_some_and(|until| until <= now) {
            self.stuck_until = None;
            self.stuck.clear();
        }
        let end = RoundEnd;
        let wanted = self.choose();
        let targets: Vec<_> = wanted.iter().map(Wanted::target).collect();
        let interrupt = Interrupt {
            word: &CHANGES,
            expected,
        };
        let deadline = Some(now + LATE_COMPLETION_INTERVAL);
        let waited = wait_any(&targets, Some(interrupt), WaitMode::LowPower, deadline);
        drop(targets);
        if let Some((_, Err(WaitError::TimedOut))) = waited {
            for wanted in &wanted {
                // A dead process may have submitted the earlier signal.
                let slot = wanted.kept.slot.get();
                slot.fail_orphans(&wanted.kept.role);
            }
        }
        let late = LATE.lock();
        IS_IN_ROUND.store(true, Ordering::Relaxed);
        drop(late);
        for wanted in &wanted {
            finish_due(wanted.key, wanted.first);
        }
        if let Some((index, Ok(()) | Err(WaitError::Failed(_) | WaitError::Abandoned))) = waited
            && wanted[index].is_first_still()
        {
            self.stuck.insert((wanted[index].key, wanted[index].first));
            self.stuck_until
                .get_or_insert(now + LATE_COMPLETION_INTERVAL);
        }
        drop(wanted);
        drop(end);
        let mut late = LATE.lock();
        late.has_job = !late.events.is_empty();
        late.has_job
    }

    /// Chooses the words to wait for in this round.
    fn choose(&mut self) -> Vec<Wanted> {
        let mut late = LATE.lock();
        let mut wanted = Vec::new();
        let from = (Bound::Included(self.next), Bound::Unbounded);
        let events = late
            .events
            .range(from)
            .chain(late.events.range(..self.next));
        for (key, event) in events {
            self.next = *key;
            if wanted.len() + RING as usize > MAX_LATE_WORDS {
                break;
            }
            let firsts = event.words.iter().filter_map(BTreeMap::first_key_value);
            let firsts = firsts.filter(|(first, _)| !self.stuck.contains(&(*key, **first)));
            wanted.extend(firsts.map(|(first, late)| Wanted {
                key: *key,
                kept: Arc::clone(&event.kept),
                first: *first,
                number: late.ticket.previous_number().unwrap_or_default(),
            }));
        }
        let roles = wanted.iter().map(|wanted| wanted.key.0).collect();
        late.holder = Some((thread::current().id(), roles));
        wanted
    }
}

impl Wanted {
    fn target(&self) -> Target<'_> {
        Target {
            slot: self.kept.slot.get(),
            number: self.number,
            liveness: &self.kept.role,
        }
    }

    /// Returns whether the signal is still the first late one of its word.
    fn is_first_still(&self) -> bool {
        let late = LATE.lock();
        let word = late.events.get(&self.key);
        let word = word.map(|event| &event.words[(self.first % RING) as usize]);
        let first = word.and_then(BTreeMap::first_key_value);
        first.is_some_and(|(first, _)| *first == self.first)
    }
}

/// Marks the end of a round when dropped, even by a panic.
struct RoundEnd;

impl Drop for RoundEnd {
    fn drop(&mut self) {
        let mut late = LATE.lock();
        late.holder = None;
        IS_IN_ROUND.store(false, Ordering::Relaxed);
        drop(late);
        ROUND_ENDED.notify_all();
    }
}

/// An event's role, without keeping its exporter or attachment alive.
enum WeakRole {
    Creator(Weak<Exporter>),
    Opener(Weak<Attachment>),
}

impl WeakRole {
    fn of(role: &Role) -> Self {
        match role {
            Role::Creator(exporter) => Self::Creator(Arc::downgrade(exporter)),
            Role::Opener(attachment) => Self::Opener(Arc::downgrade(attachment)),
        }
    }

    fn upgrade(&self) -> Option<Role> {
        match self {
            Self::Creator(exporter) => exporter.upgrade().map(Role::Creator),
            Self::Opener(attachment) => attachment.upgrade().map(Role::Opener),
        }
    }

    /// Calls `question` with the role, or returns `None` if the role no longer exists.
    fn ask<T>(&self, question: impl FnOnce(&dyn Liveness) -> T) -> Option<T> {
        let role = self.upgrade()?;
        let answer = question(role.liveness());
        // This may be the last reference by now, and dropping it may call a driver.
        match role {
            Role::Creator(exporter) => drop(Arc::into_inner(exporter).map(driver_jobs::drop_later)),
            Role::Opener(opener) => drop(Arc::into_inner(opener).map(driver_jobs::drop_later)),
        }
        Some(answer)
    }
}

/// Liveness by the role. Once the role no longer exists, its late signals are about to be removed.
impl Liveness for WeakRole {
    fn is_dead(&self, owner: Owner) -> bool {
        self.ask(|role| role.is_dead(owner)).unwrap_or(false)
    }

    fn is_abandoned(&self) -> bool {
        self.ask(|role| role.is_abandoned()).unwrap_or(false)
    }

    fn is_known_abandoned(&self) -> bool {
        self.ask(|role| role.is_known_abandoned()).unwrap_or(false)
    }
}

impl Role {
    /// Returns the address of the exporter or attachment, which identifies its late signals.
    fn address(&self) -> usize {
        match self {
            Self::Creator(exporter) => Arc::as_ptr(exporter).addr(),
            Self::Opener(attachment) => Arc::as_ptr(attachment).addr(),
        }
    }
}
