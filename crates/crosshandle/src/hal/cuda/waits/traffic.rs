//! The streams of one of the driver's contexts, and what is done only while none of them waits.
//!
//! Calls of the driver that return only when no stream waits are made on a thread of their own, on
//! which nobody depends: streams may wait of which nothing is known here, the program's own.

use super::super::driver::Driver;
use super::chore::{Chore, Doing, Urgency};
use super::{Waits, connections};
use crate::os::process;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that may wait to be unregistered before streams make room for it.
pub(super) const PATIENCE: usize = 256 << 20;
/// How long an allocation that failed waits for what can be unregistered.
const ROOM: Duration = Duration::from_secs(1);
/// How long who has something done waits until it is, and how long streams are kept quiet for one
/// thing after another.
pub(super) const LONGEST: Duration = Duration::from_millis(10);
/// How long the thread sleeps while streams wait, unless it is prompted: this part of the time
/// since something changed, within bounds.
const STEPS: u32 = 8;
const SHORTEST_NAP: Duration = Duration::from_millis(1);
const LONGEST_NAP: Duration = Duration::from_millis(50);
/// How long it stays with nothing to do.
const IDLE: Duration = Duration::from_secs(2);

/// What goes on in one of the driver's contexts.
#[derive(Default)]
pub(crate) struct Traffic {
    state: Mutex<State>,
    /// There may be something to do for the thread.
    prompted: Condvar,
    /// It has done something.
    done: Condvar,
    /// Whether no stream may begin to wait: see `State::is_halted`. Changed under the lock.
    is_halted: AtomicBool,
    /// Streams in which something is under way.
    busy: AtomicUsize,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) streams: Vec<Arc<Waits>>,
    /// What is done when no stream waits.
    quiet: VecDeque<Chore>,
    /// What they are about.
    quiet_bytes: usize,
    /// What is done at once.
    urgent: VecDeque<Chore>,
    /// What the thread is at.
    doing: Option<Doing>,
    has_thread: bool,
    /// Those who wait for it.
    waiting: usize,
    /// Since when something must be done before streams wait again.
    pressed: Option<Instant>,
    #[cfg(test)]
    pub(super) cannot_start: bool,
}

impl State {
    /// Streams that wait.
    pub(super) fn blocked(&self) -> usize {
        let streams = self.streams.iter();
        streams.filter(|stream| stream.is_blocked()).count()
    }

    /// Whether there is nothing to do.
    fn has_nothing(&self) -> bool {
        self.quiet.is_empty() && self.urgent.is_empty()
    }

    /// Whether the driver waits for a stream that is not known here.
    fn is_stuck(&self) -> bool {
        self.doing.as_ref().is_some_and(Doing::is_stuck)
    }

    /// Whether something is done that no stream may get in the way of.
    fn is_kept_quiet(&self) -> bool {
        self.doing.as_ref().is_some_and(|doing| doing.is_quiet) && !self.is_stuck()
    }

    /// Whether something must be done before streams wait again.
    fn is_pressed(&self) -> bool {
        let is_much = self.quiet_bytes > PATIENCE || self.waiting > 0 && !self.quiet.is_empty();
        // Without a thread, quiet would not help.
        is_much && self.has_thread && !self.is_stuck()
    }

    /// Whether something is done that needs quiet, or must be before streams wait again.
    pub(super) fn is_halted(&self) -> bool {
        self.is_kept_quiet() || self.is_pressed()
    }

    /// The same for functions of the user, which may wait for each other: not for ever.
    pub(super) fn halts_functions(&self) -> bool {
        let is_new = |since: Instant| since.elapsed() < ROOM;
        self.is_kept_quiet() || self.is_pressed() && self.pressed.is_none_or(is_new)
    }
}

impl Traffic {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets those know whether streams may wait who don't lock this.
    pub(super) fn show(&self, state: &mut State) {
        state.pressed = match state.is_pressed() {
            true => state.pressed.or_else(|| Some(Instant::now())),
            false => None,
        };
        self.is_halted.store(state.is_halted(), Ordering::Relaxed);
    }

    /// Whether no stream may begin to wait, as far as is known without locking.
    pub(super) fn is_halted(&self) -> bool {
        self.is_halted.load(Ordering::Relaxed)
    }

    /// Something is under way in one more stream. How many there were.
    pub(super) fn begin(&self) -> usize {
        self.busy.fetch_add(1, Ordering::SeqCst)
    }

    /// In one fewer.
    pub(super) fn end(&self) {
        self.busy.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether no stream may begin to wait. If that is for what can be done now, has it done.
    pub(super) fn halts(&self, state: &State) -> bool {
        let is_halted = state.is_halted();
        if is_halted && state.doing.is_none() && state.blocked() == 0 {
            self.prompted.notify_one();
        }
        is_halted
    }

    /// Whether a stream waits.
    pub(crate) fn is_blocked(&self) -> bool {
        self.state().blocked() > 0
    }

    /// Whether one more stream that begins would come behind another one.
    pub(crate) fn is_crowded(&self) -> bool {
        self.busy.load(Ordering::SeqCst) >= connections()
    }

    /// Whether streams come behind others already.
    pub(super) fn is_overcrowded(&self) -> bool {
        self.busy.load(Ordering::SeqCst) > connections()
    }

    /// The state, when nothing is done that a stream could get in the way of which begins to wait
    /// before the lock is given back.
    pub(super) fn state_between(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        while state.is_kept_quiet() {
            let waited = self.done.wait_timeout(state, LONGEST);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    /// Has something done that returns only when no stream waits, and after which so many bytes are
    /// free: now if none does, otherwise later.
    pub(crate) fn when_quiet(self: &Arc<Self>, bytes: usize, act: impl FnOnce() + Send + 'static) {
        self.take_on(Urgency::WhenQuiet, LONGEST, bytes, Box::new(act));
    }

    /// The same without waiting for that.
    pub(crate) fn sometime(self: &Arc<Self>, act: impl FnOnce() + Send + 'static) {
        self.take_on(Urgency::WhenQuiet, Duration::ZERO, 0, Box::new(act));
    }

    /// Has something done that may return only when no stream waits, but not later than that.
    pub(crate) fn at_once(self: &Arc<Self>, act: impl FnOnce() + Send + 'static) {
        self.take_on(Urgency::AtOnce, LONGEST, 0, Box::new(act));
    }

    /// It is done when this returns, unless a stream waits or it takes too long.
    fn take_on(
        self: &Arc<Self>,
        urgency: Urgency,
        patience: Duration,
        bytes: usize,
        act: Box<dyn FnOnce() + Send>,
    ) {
        if process::is_forked() {
            // Where the driver is not called, and locks may be held by threads that are not here.
            return;
        }
        let is_done = Arc::new(AtomicBool::new(false));
        let chore = Chore {
            bytes,
            act,
            is_done: Arc::clone(&is_done),
        };
        let mut state = self.state();
        let is_first = state.has_nothing();
        match urgency {
            Urgency::WhenQuiet => state.quiet.push_back(chore),
            Urgency::AtOnce => state.urgent.push_back(chore),
        }
        state.quiet_bytes += bytes;
        self.start(&mut state);
        let is_soon = state.has_thread && (urgency == Urgency::AtOnce || state.blocked() == 0);
        // While streams wait it looks by itself.
        if is_soon || is_first {
            self.prompted.notify_one();
        }
        let began = Instant::now();
        while is_soon && !is_done.load(Ordering::Relaxed) && !state.is_stuck() {
            let Some(left) = patience.checked_sub(began.elapsed()) else {
                break;
            };
            state = self
                .done
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Has the thread look now. Also if there was none for what there is to do.
    pub(crate) fn prompt(self: &Arc<Self>) {
        self.start(&mut self.state());
        self.prompted.notify_one();
    }

    /// Makes sure that there is a thread, if there is something to do. Where none can be started
    /// everything is left until one can: who comes along may not wait for streams.
    fn start(self: &Arc<Self>, state: &mut State) {
        if !state.has_thread && !state.has_nothing() {
            match self.spawn(state) {
                Ok(()) => state.has_thread = true,
                Err(error) => {
                    tracing::warn!(%error, "memory and programs are released when a thread can be started");
                }
            }
        }
        self.show(state);
    }

    fn spawn(self: &Arc<Self>, _state: &State) -> io::Result<()> {
        #[cfg(test)]
        if _state.cannot_start {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let traffic = Arc::clone(self);
        let thread = std::thread::Builder::new().name("crosshandle-quiet".into());
        thread.spawn(move || traffic.work()).map(drop)
    }

    fn work(&self) {
        if let Ok(driver) = Driver::get() {
            driver.ignore_captures();
        }
        let mut changed = Instant::now();
        let mut state = self.state();
        loop {
            if let Some(chore) = self.next(&mut state) {
                state = self.act(state, chore);
                changed = Instant::now();
                if state.doing.is_some() || !state.urgent.is_empty() {
                    continue;
                }
                // Streams get their turn before what is left.
            }
            let has_nothing = state.has_nothing();
            let nap = match has_nothing {
                true => IDLE,
                false => (changed.elapsed() / STEPS).clamp(SHORTEST_NAP, LONGEST_NAP),
            };
            let waited = self.prompted.wait_timeout(state, nap);
            let (locked, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = locked;
            if !timeout.timed_out() {
                changed = Instant::now();
            } else if has_nothing && state.has_nothing() {
                state.has_thread = false;
                return;
            }
        }
    }

    /// What to do now, if there is anything.
    fn next(&self, state: &mut State) -> Option<Chore> {
        if let Some(chore) = state.urgent.pop_front() {
            // Before the streams are looked at.
            state.doing = Some(Doing::begin());
            self.show(state);
            if state.blocked() > 0 {
                state.doing = Some(Doing::begin_beside_streams());
                self.show(state);
            }
            return Some(chore);
        }
        let bytes = state.quiet.front()?.bytes;
        state
            .doing
            .get_or_insert_with(Doing::begin)
            .begin_next(bytes);
        // As above.
        self.show(state);
        if state.blocked() > 0 {
            state.doing = None;
            self.show(state);
            return None;
        }
        state.quiet_bytes -= bytes;
        state.quiet.pop_front()
    }

    fn act<'a>(&'a self, state: MutexGuard<'a, State>, chore: Chore) -> MutexGuard<'a, State> {
        drop(state);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(chore.act)) {
            std::mem::forget(panic);
        }
        chore.is_done.store(true, Ordering::Relaxed);
        let mut state = self.state();
        // While it is quiet the others come too, for a while.
        let is_over = |doing: &Doing| doing.began.elapsed() > LONGEST;
        let goes_on = state.is_kept_quiet()
            && !state.doing.as_ref().is_some_and(is_over)
            && !state.quiet.is_empty()
            && state.urgent.is_empty();
        if !goes_on {
            state.doing = None;
        }
        self.show(&mut state);
        self.done.notify_all();
        state
    }

    /// Waits a while until all that needs quiet is done: so that an allocation can be tried again, or
    /// streams are there before they are needed.
    #[cold]
    pub(crate) fn make_room(self: &Arc<Self>) {
        let start = Instant::now();
        let mut state = self.state();
        state.waiting += 1;
        while !state.quiet.is_empty() || state.doing.is_some() {
            self.start(&mut state);
            self.prompted.notify_one();
            let Some(left) = ROOM.checked_sub(start.elapsed()) else {
                break;
            };
            if state.is_stuck() || !state.has_thread {
                break;
            }
            state = self
                .done
                .wait_timeout(state, left.min(LONGEST))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state.waiting -= 1;
        self.show(&mut state);
    }
}
