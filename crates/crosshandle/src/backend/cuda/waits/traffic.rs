//! The streams of one of the driver's contexts, and what is done only while none of them waits.
//!
//! Calls of the driver that return only when no stream waits are made on a thread of their own, on
//! which nobody depends: streams may wait of which nothing is known here, the program's own.

use super::super::driver::Driver;
use super::{Waits, connections};
use crate::os::process;
use rustix::thread::set_current_timer_slack;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that may wait to be unregistered before streams make room for it.
pub(super) const PATIENCE: usize = 256 << 20;
/// How long an allocation that failed waits for what can be unregistered.
const ROOM: Duration = Duration::from_secs(1);
/// What takes longer than this waits for a stream that is not known here. Then neither streams nor
/// callers wait for it any more.
pub(super) const LONGEST: Duration = Duration::from_millis(10);

/// How long the thread sleeps while streams wait: this part of the time since it did something,
/// within bounds.
const STEPS: u32 = 8;
const SHORTEST_NAP: Duration = Duration::from_micros(10);
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// How late the system may wake it then, in nanoseconds.
const SLACK: NonZeroU64 = NonZeroU64::new(1_000).unwrap();
/// How long it stays with nothing to do.
const IDLE: Duration = Duration::from_secs(2);

/// What goes on in one of the driver's contexts.
#[derive(Default)]
pub(in super::super) struct Traffic {
    state: Mutex<State>,
    /// There is something to do for the thread.
    added: Condvar,
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
    /// Since when the thread does one or several of them.
    doing: Option<(Urgency, Instant)>,
    has_thread: bool,
    /// Allocations that failed and wait for it.
    waiting: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Urgency {
    WhenQuiet,
    AtOnce,
}

struct Chore {
    /// How much memory is free after it.
    bytes: usize,
    act: Box<dyn FnOnce() + Send>,
    is_done: Arc<AtomicBool>,
}

impl State {
    /// Streams that wait.
    pub(super) fn blocked(&self) -> usize {
        let streams = self.streams.iter();
        streams.filter(|stream| stream.is_blocked()).count()
    }

    /// Whether the driver waits for a stream that is not known here.
    fn is_stuck(&self) -> bool {
        self.doing
            .is_some_and(|(_, since)| since.elapsed() > LONGEST)
    }

    /// Whether something is done that needs quiet, or must be before streams wait again.
    pub(super) fn is_halted(&self) -> bool {
        let is_quiet = matches!(self.doing, Some((Urgency::WhenQuiet, _)));
        let is_pressed = self.quiet_bytes > PATIENCE || self.waiting > 0 && !self.quiet.is_empty();
        (is_quiet || is_pressed) && !self.is_stuck()
    }
}

impl Traffic {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets those know whether streams may wait who don't lock this.
    pub(super) fn show(&self, state: &State) {
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

    /// Whether one more stream that begins would come behind another one.
    pub(in super::super) fn is_crowded(&self) -> bool {
        self.busy.load(Ordering::SeqCst) >= connections()
    }

    /// Whether streams come behind others already.
    pub(super) fn is_overcrowded(&self) -> bool {
        self.busy.load(Ordering::SeqCst) > connections()
    }

    /// Has something done that returns only when no stream waits, and after which so many bytes are
    /// free: now if none does, otherwise later.
    pub(in super::super) fn when_quiet(
        self: &Arc<Self>,
        bytes: usize,
        act: impl FnOnce() + Send + 'static,
    ) {
        self.take_on(Urgency::WhenQuiet, bytes, Box::new(act));
    }

    /// Has something done that may return only when no stream waits, but not later than that.
    pub(in super::super) fn at_once(self: &Arc<Self>, act: impl FnOnce() + Send + 'static) {
        self.take_on(Urgency::AtOnce, 0, Box::new(act));
    }

    /// It is done when this returns, unless a stream waits.
    fn take_on(self: &Arc<Self>, urgency: Urgency, bytes: usize, act: Box<dyn FnOnce() + Send>) {
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
        match urgency {
            Urgency::WhenQuiet => state.quiet.push_back(chore),
            Urgency::AtOnce => state.urgent.push_back(chore),
        }
        state.quiet_bytes += bytes;
        self.show(&state);
        let mut state = self.start(state);
        self.added.notify_one();
        let is_soon = urgency == Urgency::AtOnce || state.blocked() == 0;
        let began = Instant::now();
        while is_soon && !is_done.load(Ordering::Relaxed) && !state.is_stuck() {
            let Some(left) = LONGEST.checked_sub(began.elapsed()) else {
                break;
            };
            state = self
                .done
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Makes sure that somebody does what there is to do.
    fn start<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.has_thread {
            return state;
        }
        let traffic = Arc::clone(self);
        let thread = std::thread::Builder::new().name("crosshandle-quiet".into());
        match thread.spawn(move || traffic.work()) {
            Ok(_) => state.has_thread = true,
            Err(error) => {
                tracing::warn!(%error, "what needs quiet streams is done where it comes up");
                while let Some(chore) = self.next(&mut state) {
                    state = self.act(state, chore);
                }
            }
        }
        state
    }

    fn work(&self) {
        if let Ok(driver) = Driver::get() {
            driver.ignore_captures();
        }
        if let Err(error) = set_current_timer_slack(Some(SLACK)) {
            tracing::debug!(%error, "naps are longer than they should be");
        }
        let mut acted = Instant::now();
        let mut state = self.state();
        loop {
            if let Some(chore) = self.next(&mut state) {
                state = self.act(state, chore);
                acted = Instant::now();
                continue;
            }
            let has_nothing = state.quiet.is_empty();
            let nap = match has_nothing {
                true => IDLE,
                false => (acted.elapsed() / STEPS).clamp(SHORTEST_NAP, LONGEST_NAP),
            };
            let waited = self.added.wait_timeout(state, nap);
            let (locked, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = locked;
            let is_over = state.quiet.is_empty() && state.urgent.is_empty();
            if has_nothing && is_over && timeout.timed_out() {
                state.has_thread = false;
                return;
            }
        }
    }

    /// What to do now, if there is anything.
    fn next(&self, state: &mut State) -> Option<Chore> {
        if let Some(chore) = state.urgent.pop_front() {
            state.doing = Some((Urgency::AtOnce, Instant::now()));
            self.show(state);
            return Some(chore);
        }
        if state.quiet.is_empty() {
            return None;
        }
        if state.doing.is_none() {
            // Before the streams are looked at.
            state.doing = Some((Urgency::WhenQuiet, Instant::now()));
            self.show(state);
            if state.blocked() > 0 {
                state.doing = None;
                self.show(state);
                return None;
            }
        }
        let chore = state.quiet.pop_front()?;
        state.quiet_bytes -= chore.bytes;
        Some(chore)
    }

    fn act<'a>(&'a self, state: MutexGuard<'a, State>, chore: Chore) -> MutexGuard<'a, State> {
        drop(state);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(chore.act)) {
            std::mem::forget(panic);
        }
        chore.is_done.store(true, Ordering::Relaxed);
        let mut state = self.state();
        // While it is quiet the others come too.
        let goes_on = matches!(state.doing, Some((Urgency::WhenQuiet, _)))
            && !state.is_stuck()
            && !state.quiet.is_empty()
            && state.urgent.is_empty();
        if !goes_on {
            state.doing = None;
        }
        self.show(&state);
        self.done.notify_all();
        state
    }

    /// Waits a while until all that needs quiet is done, so that an allocation can be tried again.
    #[cold]
    pub(in super::super) fn make_room(&self) {
        let start = Instant::now();
        let mut state = self.state();
        state.waiting += 1;
        self.show(&state);
        while !state.quiet.is_empty() || state.doing.is_some() {
            let Some(left) = ROOM.checked_sub(start.elapsed()) else {
                break;
            };
            if state.is_stuck() {
                break;
            }
            state = self
                .done
                .wait_timeout(state, left.min(LONGEST))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state.waiting -= 1;
        self.show(&state);
    }
}
