//! Stream admission: records what each stream waits for, and decides whether one more may wait.

use super::{Scheduler, SchedulerState};
use crate::memory::process_word::ProcessWord;
use crate::tuning::DEFERRED_CALL_WAIT;
use crosshandle_hal::WaitPoint;
use crosshandle_ipc::EventCore;
use crosshandle_os::process;
use crosshandle_types::sync::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Number of connections of a context to its device, unless `CUDA_DEVICE_MAX_CONNECTIONS` is set.
/// It is the driver's default. With a wrong number, streams queue behind other streams that wait,
/// or too few streams are used.
const DEFAULT_CONNECTIONS: usize = 8;

/// The environment variable that gives the driver the number of connections.
const CONNECTIONS_VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// A condition that a stream waits for.
#[derive(Clone)]
pub(crate) enum Wait {
    /// A signal of an event.
    Event(Arc<EventCore>, u64),
    /// A word of this process that reaches a number when a host function has returned.
    Word(Arc<ProcessWord>, u32),
    #[cfg(test)]
    Flag(Arc<AtomicBool>),
}

impl Wait {
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::Event(event, number) => event.releases_device(*number),
            Self::Word(word, number) => word.has_reached(*number),
            #[cfg(test)]
            Self::Flag(flag) => flag.load(Ordering::Relaxed),
        }
    }

    fn is(&self, event: &Arc<EventCore>, number: u64) -> bool {
        matches!(self, Self::Event(other, known) if Arc::ptr_eq(other, event) && *known == number)
    }
}

/// Waits that were removed from a list. They are dropped without the list's lock, because a wait
/// may have the last reference to memory of another process.
type OverWaits = SmallVec<[Wait; 4]>;

/// The waits of one stream, in order.
pub(crate) struct StreamWaits {
    scheduler: Arc<Scheduler>,
    list: Mutex<VecDeque<Wait>>,
    /// Whether the stream has commands in flight, as far as its queue knows.
    is_busy: AtomicBool,
}

impl StreamWaits {
    fn list(&self) -> MutexGuard<'_, VecDeque<Wait>> {
        self.list.lock()
    }

    /// Makes the stream busy, unless it could be queued behind a stream that waits. Returns whether
    /// the stream is busy now.
    #[inline]
    pub(crate) fn begin(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed) || self.begin_first()
    }

    fn begin_first(&self) -> bool {
        let scheduler = &self.scheduler;
        let before = scheduler.busy.fetch_add(1, Ordering::SeqCst);
        if before >= connections() && scheduler.is_blocked() {
            scheduler.busy.fetch_sub(1, Ordering::SeqCst);
            return false;
        }
        self.is_busy.store(true, Ordering::Relaxed);
        true
    }

    /// Makes the stream busy, even if it is queued behind a stream that waits.
    #[inline]
    pub(crate) fn begin_anyway(&self) {
        if !self.is_busy.load(Ordering::Relaxed) && !self.is_busy.swap(true, Ordering::Relaxed) {
            self.scheduler.busy.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Makes the stream idle and clears its waits, because nothing is in flight. A refused wait
    /// would otherwise be treated as current until it is over. A wait that is over would keep its
    /// event alive.
    #[inline]
    pub(crate) fn end(&self) {
        if self.is_busy.load(Ordering::Relaxed) && self.is_busy.swap(false, Ordering::Relaxed) {
            self.scheduler.busy.fetch_sub(1, Ordering::SeqCst);
            self.clear();
        }
    }

    /// Returns whether the stream waits for a condition that has not happened.
    pub(crate) fn is_blocked(&self) -> bool {
        self.list().iter().any(|wait| !wait.is_over())
    }

    /// Returns all conditions that the stream waits for.
    pub(crate) fn pending(&self) -> Vec<Wait> {
        let list = self.list();
        let pending = list.iter().filter(|wait| !wait.is_over());
        pending.cloned().collect()
    }

    /// Describes the waits that are not over, in the order of the stream.
    pub(crate) fn describe(&self) -> Vec<(u64, String)> {
        let list = self.list();
        let waits = list.iter().filter(|wait| !wait.is_over());
        let texts = waits.map(|wait| match wait {
            Wait::Event(event, number) => (*number, describe(event)),
            Wait::Word(word, number) => (u64::from(*number), format!("word {}", word.read())),
            #[cfg(test)]
            Wait::Flag(_) => (0, String::new()),
        });
        texts.collect()
    }

    /// Returns the signal that the stream waits for now, if there is one.
    pub(crate) fn first_event(&self) -> Option<(Arc<EventCore>, u64)> {
        let list = self.list();
        match list.iter().find(|wait| !wait.is_over())? {
            Wait::Event(event, number) => Some((Arc::clone(event), *number)),
            _ => None,
        }
    }

    /// Adds waits without admission. The caller has a [`HoldOff`], or accepts that the waits delay
    /// a deferred call.
    pub(crate) fn note(&self, waits: impl IntoIterator<Item = Wait>) {
        let mut waits = waits.into_iter().peekable();
        if waits.peek().is_some() {
            let over = take_over(&mut self.list(), waits);
            drop(over);
        }
    }

    /// Adds waits if the stream already waits and no deferred call needs quiet. The error tells
    /// whether the stream waits for nothing.
    fn extend(&self, waits: &mut impl Iterator<Item = Wait>) -> Result<(), bool> {
        // Declared before the lock, so that it is dropped after the unlock.
        let _over;
        let mut list = self.list();
        _over = take_over(&mut list, []);
        // The list is locked before `is_halted` is read, and a thread that needs quiet writes
        // `is_halted` before it checks the list. Either this thread sees the written value, or the
        // other thread sees these waits.
        if list.is_empty() || self.scheduler.is_halted.load(Ordering::Relaxed) {
            return Err(list.is_empty());
        }
        list.extend(waits);
        Ok(())
    }

    /// Forgets all waits, because none of their conditions will happen.
    pub(crate) fn clear(&self) {
        let all: OverWaits = self.list().drain(..).collect();
        drop(all);
    }

    /// Lets the stream wait for one more signal, if it already waits and no deferred call needs
    /// quiet. Most commands that wait need only this check.
    #[inline]
    pub(crate) fn admit_more(&self, wait: &WaitPoint) -> bool {
        let mut list = self.list();
        let is_blocked = list.front().is_some_and(|first| !first.is_over());
        // As in `extend`, the list must be locked before `is_halted` is read.
        if !is_blocked || self.scheduler.is_halted.load(Ordering::Relaxed) {
            return false;
        }
        // Several commands may wait for the same signal.
        let (event, number) = (&wait.event, wait.number);
        if !list.back().is_some_and(|last| last.is(event, number)) {
            list.push_back(Wait::Event(Arc::clone(event), number));
        }
        true
    }

    /// Lets the stream wait, unless too many streams wait or a deferred call needs quiet. The
    /// command otherwise stays pending and is tried again.
    #[inline]
    pub(crate) fn admit(&self, waits: impl IntoIterator<Item = Wait>) -> bool {
        self.admit_among(most_blocked(), SchedulerState::is_halted, waits)
    }

    /// Lets the stream wait until a host function returns. The function runs only while the stream
    /// waits, so one stream may wait even if there is only one connection. After a second, the
    /// stream may wait even while calls are due, because host functions may wait for each other.
    pub(crate) fn admit_function(&self) -> bool {
        self.admit_among(most_blocked().max(1), SchedulerState::halts_functions, [])
    }

    fn admit_among(
        &self,
        most: usize,
        halts: impl FnOnce(&SchedulerState) -> bool,
        waits: impl IntoIterator<Item = Wait>,
    ) -> bool {
        let mut waits = waits.into_iter();
        // A stream that already waits may wait for more.
        let Err(is_free) = self.extend(&mut waits) else {
            return true;
        };
        let scheduler = &self.scheduler;
        let mut state = scheduler.state();
        // The published value may be out of date.
        scheduler.publish(&mut state);
        if state.is_halted() && !state.calls.needs_quiet() && state.blocked() == 0 {
            // The thread makes the calls that can be made now.
            scheduler.prompt_thread(&mut state);
        }
        let is_full = || {
            let is_overcrowded = scheduler.busy.load(Ordering::SeqCst) > connections();
            state.blocked() >= most || is_overcrowded
        };
        if halts(&state) || is_free && is_full() {
            return false;
        }
        // The scheduler's lock is still held, so no thread can find the streams quiet before this.
        self.list().extend(waits);
        true
    }
}

/// Describes an event by its address and by the numbers of its signals.
pub(crate) fn describe(event: &Arc<EventCore>) -> String {
    let (at, completed, submitted) = (Arc::as_ptr(event), event.completed(), event.submitted());
    format!("{at:p}: {completed} of {submitted}")
}

/// Removes the waits that are over, in the order in which the stream waits, and adds other waits.
fn take_over(list: &mut VecDeque<Wait>, waits: impl IntoIterator<Item = Wait>) -> OverWaits {
    let mut over = OverWaits::new();
    while let Some(wait) = list.pop_front_if(|wait| wait.is_over()) {
        over.push(wait);
    }
    list.extend(waits);
    over
}

/// The waits of a stream. The stream's scheduler knows them until this is dropped.
pub(crate) struct KnownWaits(Arc<StreamWaits>);

impl KnownWaits {
    pub(crate) fn new(scheduler: &Arc<Scheduler>) -> Self {
        let waits = Arc::new(StreamWaits {
            scheduler: Arc::clone(scheduler),
            list: Mutex::default(),
            is_busy: AtomicBool::new(false),
        });
        scheduler.state().streams.push(Arc::clone(&waits));
        Self(waits)
    }
}

impl Deref for KnownWaits {
    type Target = StreamWaits;

    fn deref(&self) -> &StreamWaits {
        &self.0
    }
}

impl Drop for KnownWaits {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        self.0.end();
        let mut state = self.0.scheduler.state();
        let streams = &mut state.streams;
        let is_it = |stream: &Arc<StreamWaits>| Arc::ptr_eq(stream, &self.0);
        let found = streams.iter().position(is_it);
        let found = found.map(|index| streams.swap_remove(index));
        drop(state);
        drop(found);
    }
}

/// Keeps quiet calls from beginning until it is dropped. A stream may then begin to wait without
/// delaying such a call.
pub(crate) struct HoldOff(Arc<Scheduler>);

impl Drop for HoldOff {
    fn drop(&mut self) {
        if !process::is_forked() {
            self.0.state().calls.hold_offs -= 1;
        }
    }
}

impl Scheduler {
    /// Waits until no running call needs quiet, and then holds off quiet calls. The caller holds no
    /// lock.
    pub(crate) fn hold_off(self: &Arc<Self>) -> HoldOff {
        let mut state = self.state();
        while state.calls.needs_quiet() {
            state = self.call_returned.wait_timeout(state, DEFERRED_CALL_WAIT).0;
        }
        state.calls.hold_offs += 1;
        HoldOff(Arc::clone(self))
    }

    /// Holds off quiet calls, unless one is running.
    pub(crate) fn try_hold_off(self: &Arc<Self>) -> Option<HoldOff> {
        let mut state = self.state();
        if state.calls.needs_quiet() {
            return None;
        }
        state.calls.hold_offs += 1;
        Some(HoldOff(Arc::clone(self)))
    }

    /// Returns whether a stream waits.
    pub(crate) fn is_blocked(&self) -> bool {
        self.state().blocked() > 0
    }

    /// Returns whether one more busy stream would be queued behind another stream.
    pub(crate) fn is_crowded(&self) -> bool {
        self.busy.load(Ordering::SeqCst) >= connections()
    }
}

/// Returns the number of connections of a context to its device.
pub(super) fn connections() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let text = std::env::var(CONNECTIONS_VARIABLE).ok();
        let count = text.and_then(|text| text.trim().parse().ok());
        count.unwrap_or(DEFAULT_CONNECTIONS).clamp(1, 32)
    })
}

/// Returns the number of streams that may wait at the same time. The other half of the connections
/// is for streams that run. Returns 0 if there is only one connection.
pub(super) fn most_blocked() -> usize {
    connections() / 2
}

/// Returns the number of streams of one queue that should run at the same time.
pub(crate) fn most_running() -> usize {
    (connections() - most_blocked())
        .saturating_sub(1)
        .clamp(1, 3)
}
