//! One list of a queue, its commands, and who submits them.
//!
//! What waits for nothing but the list itself, or for what the driver's own events tell, is appended
//! when it is submitted. What waits for the host is *held*, and all behind it: a thread waits,
//! and then appends as much as it can, or calls the function. The thread also looks how far the list
//! is, to signal events of commands and to let go of what they used: at once if somebody may wait
//! for that, and after a while if not, so that most submissions wake nobody.

mod append;
mod end;
mod held;
mod marks;
mod state;
mod thread;
mod waiting;

use super::device::Gpu;
use super::driver::{Core, List};
use super::entry::{Entry, Over, Rare, is_settled};
use super::leaving;
use super::queue::Notes;
use crate::backend::{Submission, Work};
use crate::error::{Error, Result};
use crate::os::process;
use crate::sharing::{EventCore, Profile};
use append::is_long;
use state::{Rest, State};
use std::mem::{self, ManuallyDrop};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How often the thread tries to lock before it sleeps until it can.
const TRIES: u32 = 1000;

/// With so many commands that nobody is known to wait for, the thread is woken to let go of what they
/// used. That takes the one who submits some 10 µs.
const BACKLOG: usize = 1024;

/// How long a queue that is dropped waits for what is as good as done.
const LOOK: Duration = Duration::from_millis(5);

/// A lane, until its queue is dropped; its thread goes on until it has nothing to do.
pub(super) struct Lane(Arc<Inner>);

struct Inner {
    gpu: Arc<Gpu>,
    core: Arc<Core>,
    notes: Arc<Notes>,
    state: Mutex<State>,
    /// Commands that are over.
    ended: AtomicU64,
    /// How many wait for that.
    finishers: AtomicUsize,
    /// Notified when the thread has something to do.
    added: Condvar,
    /// Notified when commands are over and somebody waits for that.
    finished: Condvar,
}

impl Lane {
    pub(super) fn new(gpu: &Arc<Gpu>, core: &Arc<Core>, notes: &Arc<Notes>) -> Self {
        Self(Arc::new(Inner {
            gpu: Arc::clone(gpu),
            core: Arc::clone(core),
            notes: Arc::clone(notes),
            state: Mutex::new(State::new(core)),
            ended: AtomicU64::new(0),
            finishers: AtomicUsize::new(0),
            added: Condvar::new(),
            finished: Condvar::new(),
        }))
    }

    /// Whether nothing is left to do, as far as is known.
    pub(super) fn is_idle(&self) -> bool {
        self.0.is_idle(&self.0.state())
    }

    /// Finds out soon whether something is left to do.
    pub(super) fn look(&self) {
        self.0.press(&mut self.0.state());
    }

    /// Whether something waits for the host, so that more would come late.
    pub(super) fn is_held(&self) -> bool {
        self.0.state().is_held()
    }

    /// How many commands there were.
    pub(super) fn submitted(&self) -> u64 {
        self.0.state().submitted
    }

    /// Waits until so many commands are over; `false` at the deadline.
    pub(super) fn finish(&self, count: u64, deadline: Option<Instant>) -> bool {
        let mut state = self.0.state();
        if self.0.ended() >= count {
            return true;
        }
        self.0.finishers.fetch_add(1, Ordering::Relaxed);
        self.0.press(&mut state);
        let is_busy = |_: &mut State| self.0.ended() < count;
        let finished = &self.0.finished;
        let state = match deadline {
            None => finished
                .wait_while(state, is_busy)
                .unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                let waited = finished.wait_timeout_while(state, left, is_busy);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        drop(state);
        self.0.finishers.fetch_sub(1, Ordering::Relaxed);
        self.0.ended() >= count
    }

    /// Takes a command of a queue that has no other lane; `false` if it is shut. What is refused
    /// stays where it was: it may be the user's, which is dropped without locks.
    #[inline]
    pub(super) fn submit(&self, given: &mut Submission) -> Result<bool> {
        let is_bare = matches!(given.work, Work::Nothing) && given.waits.is_empty();
        if is_bare && given.signal.is_none() {
            return Ok(true);
        }
        let state = self.0.state();
        if state.is_shut {
            return Ok(false);
        }
        match &given.signal {
            // With nothing before it, it is over.
            Some(event) if is_bare && self.0.is_idle(&state) => signal_now(event)?,
            _ => self.0.add(state, given, None)?,
        }
        Ok(true)
    }

    /// Takes no more commands. What comes after those that it has waits for the one that comes back.
    pub(super) fn shut(&self) -> Result<Option<Arc<Over>>> {
        let mut state = self.0.state();
        state.is_shut = true;
        if self.0.is_idle(&state) {
            return Ok(None);
        }
        let (over, rare) = Rare::after(Vec::new());
        self.0
            .add(state, &mut Submission::new(Work::Nothing), rare)?;
        Ok(Some(over))
    }

    /// Takes commands again.
    pub(super) fn open(&self) {
        self.0.state().is_shut = false;
    }

    /// The same for one that comes after some of other lanes.
    pub(super) fn submit_after(
        &self,
        given: &mut Submission,
        after: Vec<Arc<Over>>,
    ) -> Result<Arc<Over>> {
        let (over, rare) = Rare::after(after);
        self.0.add(self.0.state(), given, rare)?;
        Ok(over)
    }
}

/// Signals an event of a command that is over as soon as it is submitted.
fn signal_now(event: &Arc<EventCore>) -> Result<()> {
    let profile = event.profile();
    if let Some(profile) = profile {
        profile.restart();
        Profile::stamp(&profile.started);
        Profile::stamp(&profile.ended);
    }
    event.signal().map(drop)
}

impl Drop for Lane {
    fn drop(&mut self) {
        if process::is_forked() {
            // Its lock may be held by a thread that is not in the child.
            mem::forget(Arc::clone(&self.0));
            return;
        }
        let mut state = self.0.state();
        state.is_closed = true;
        let thread = state.thread.take();
        self.0.press(&mut state);
        // The list may be past all of it, and nobody has looked.
        let state = self.0.become_idle(state, Instant::now() + LOOK);
        let is_idle = state.entries.is_empty();
        drop(state);
        // What was submitted still runs. If nothing is left, all of the driver's is gone after this.
        match thread {
            Some(thread) if is_idle => leaving::join(thread),
            Some(thread) => {
                let lane = Arc::downgrade(&self.0);
                let leaving = &self.0.notes.leaving;
                leaving.add(thread, move |end| {
                    let lane = lane.upgrade();
                    lane.is_none_or(|lane| lane.become_idle(lane.state(), end).entries.is_empty())
                });
            }
            None => {}
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for the thread: nobody who submits shall have to wake it when he unlocks.
    fn state_in_turn(&self) -> MutexGuard<'_, State> {
        for tries in 0.. {
            match self.state.try_lock() {
                Ok(state) => return state,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if tries < TRIES => std::hint::spin_loop(),
                Err(TryLockError::WouldBlock) if tries < 2 * TRIES => std::thread::yield_now(),
                // The driver takes its time.
                Err(TryLockError::WouldBlock) => break,
            }
        }
        self.state()
    }

    /// How many commands are over.
    fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether somebody waits for commands to be over. He counts himself under the lock.
    fn has_finishers(&self) -> bool {
        self.finishers.load(Ordering::Relaxed) > 0
    }

    /// Whether all commands are over.
    fn is_idle(&self, state: &State) -> bool {
        self.ended() == state.submitted
    }

    /// Waits until no command is left, unless one waits for somebody.
    fn become_idle<'a>(&self, state: MutexGuard<'a, State>, end: Instant) -> MutexGuard<'a, State> {
        let mut waits = state.entries.iter().flat_map(|entry| entry.waits.iter());
        if state.entries.is_empty() || state.is_held() || !waits.all(is_settled) {
            return state;
        }
        self.finishers.fetch_add(1, Ordering::Relaxed);
        let left = end.saturating_duration_since(Instant::now());
        let is_busy = |state: &mut State| !state.entries.is_empty();
        let waited = self.finished.wait_timeout_while(state, left, is_busy);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        self.finishers.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Lets the thread look at all commands now.
    fn press(&self, state: &mut State) {
        state.pressing = state.submitted;
        self.wake(state, true);
    }

    /// Wakes the thread if it sleeps, or also if it naps.
    #[inline]
    fn wake(&self, state: &mut State, from_nap: bool) {
        // Notifying costs as much as the driver's call, also if nobody is there.
        if state.rest == Rest::Sleep || from_nap && state.rest == Rest::Nap {
            state.rest = Rest::None;
            self.added.notify_one();
        }
    }

    /// Takes a command.
    fn add(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        given: &mut Submission,
        rare: Option<Box<Rare>>,
    ) -> Result<()> {
        if state.thread.is_none() {
            self.start(&mut state)?;
        }
        state.prefetch_place();
        // Under the lock, so that numbers follow the order of the queue.
        let number = match &given.signal {
            Some(event) => {
                if let Some(profile) = event.profile() {
                    profile.restart();
                }
                Some(event.issue()?.number)
            }
            None => None,
        };
        let state = &mut *state;
        let (work, waits) = (mem::take(&mut given.work), mem::take(&mut given.waits));
        // Once the list has it, a panic must not take it away.
        let entry = Entry::new(work, waits, given.signal.take().zip(number), rare);
        let mut entry = ManuallyDrop::new(entry);
        // It may be switched on or off before it ends.
        entry.is_timed = entry.profile().is_some();
        state.timed += usize::from(entry.is_timed);
        if state.is_held() {
            // What that waited for may be there by now.
            self.append_more(state);
        }
        let is_appended = !state.is_held() && !entry.needs_host() && self.append(state, &mut entry);
        // What takes a while has a mark: then the thread sleeps better in the driver.
        let is_alone = !is_appended || entry.is_awaited() || is_long(&entry);
        let is_pressing = is_alone || state.entries.len() >= BACKLOG;
        state.entries.push_back(ManuallyDrop::into_inner(entry));
        state.submitted += 1;
        state.appended += usize::from(is_appended);
        if is_pressing {
            state.pressing = state.submitted;
        }
        self.wake(state, is_pressing);
        Ok(())
    }

    /// Makes a list, a mark and the thread.
    #[cold]
    fn start(self: &Arc<Self>, state: &mut State) -> Result<()> {
        if state.list.is_none() {
            let (device, group) = (self.gpu.handle(), self.gpu.group());
            state.list = Some(List::create(&self.core, device, group)?);
        }
        // So that the thread has one in any case.
        let mark = state.marks.take()?;
        state.marks.give_back([mark]);
        let inner = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name("crosshandle-lane".into())
            .spawn(move || inner.run())
            .map_err(|error| Error::LimitReached {
                what: format!("a queue's thread cannot be started: {error}"),
                remedy: "raise RLIMIT_NPROC (ulimit -u)".into(),
            })?;
        state.thread = Some(thread);
        Ok(())
    }

    /// Appends commands to the list until one needs the host.
    fn append_more(&self, state: &mut State) {
        while let Some(entry) = state.entries.get(state.appended) {
            if entry.needs_host() || !self.append_held(state) {
                return;
            }
        }
    }
}
