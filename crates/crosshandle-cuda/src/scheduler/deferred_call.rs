//! Deferred driver calls, which return only when no stream of the context waits.
//!
//! Examples are unregistering host memory, unloading programs, and sometimes creating streams. A
//! background thread makes one such call at a time. Streams of the program, which this library does
//! not see, may wait too, and a call then returns only when they continue. The scheduler's thread
//! must not make such a call, because streams of this library depend on that thread.

use super::{Scheduler, SchedulerState, tell};
use crate::driver;
use crate::tuning::{
    CALL_STUCK_AFTER, DEFERRED_CALL_WAIT, DEFERRED_SLEEP_SHORTEST, QUIET_MAX_BYTES,
};
use crosshandle_os::process;
use crosshandle_os::threads::background;
use crosshandle_types::sync::MutexGuard;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time that a failed allocation waits for memory to be released, and time that host functions are
/// held back for it.
const MAKE_ROOM_WAIT: Duration = Duration::from_secs(1);

/// Bytes for each additional millisecond that a call may take, because pages are released one by
/// one. Measured: 0.2 to 13 ms for 2 MiB.
const RELEASED_BYTES_PER_MS: usize = 2 << 20;

/// The urgency of a deferred call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// The call is made when no stream waits.
    WhenQuiet,
    /// The call is made at once, although streams wait. It may return only when they continue.
    AtOnce,
}

/// One deferred call.
struct DeferredCall {
    /// The number of bytes that the call frees.
    bytes: usize,
    act: Box<dyn FnOnce() + Send>,
    has_returned: Arc<AtomicBool>,
}

/// The calls that a background thread makes: one call, or several while no stream waits.
struct Running {
    /// Whether no stream waited when the first call began, so that no stream may begin to wait.
    is_quiet: bool,
    /// The times at which the first call and the current call began.
    began: Instant,
    since: Instant,
    /// The time that the current call may take before it is treated as stuck.
    expected: Duration,
}

impl Running {
    fn begin() -> Self {
        let now = Instant::now();
        Self {
            is_quiet: true,
            began: now,
            since: now,
            expected: CALL_STUCK_AFTER,
        }
    }

    /// Begins the next call, which releases `bytes` bytes.
    fn begin_next(&mut self, bytes: usize) {
        let more = Duration::from_millis((bytes / RELEASED_BYTES_PER_MS) as u64);
        self.since = Instant::now();
        self.expected = CALL_STUCK_AFTER + more;
    }
}

/// The deferred calls of one context.
#[derive(Default)]
pub(super) struct DeferredCalls {
    /// Calls that are made when no stream waits, and the number of bytes that the deferred calls
    /// free.
    quiet: VecDeque<DeferredCall>,
    quiet_bytes: usize,
    /// Calls that are made at once.
    urgent: VecDeque<DeferredCall>,
    /// Whether a background thread makes calls or was requested, and the time of a request that no
    /// thread has served yet.
    has_runner: bool,
    requested: Option<Instant>,
    running: Option<Running>,
    /// The number of threads that wait until all quiet calls have returned.
    waiting: usize,
    /// The time since which quiet calls must be made before streams may begin to wait.
    pressed: Option<Instant>,
    /// The number of submitters that hold off quiet calls (see
    /// [`HoldOff`](super::admission::HoldOff)).
    pub(super) hold_offs: usize,
}

impl DeferredCalls {
    pub(super) fn is_empty(&self) -> bool {
        self.quiet.is_empty() && self.urgent.is_empty()
    }

    /// Returns whether the driver seems to wait for an unknown stream, or whether no background
    /// thread starts. Streams are then no longer held back for the calls.
    fn is_stuck(&self) -> bool {
        let is_late = |since: Instant| since.elapsed() > CALL_STUCK_AFTER;
        let is_slow = |running: &Running| running.since.elapsed() > running.expected;
        self.requested.is_some_and(is_late) || self.running.as_ref().is_some_and(is_slow)
    }

    /// Returns whether a call is running during which no stream may begin to wait.
    pub(super) fn needs_quiet(&self) -> bool {
        self.running
            .as_ref()
            .is_some_and(|running| running.is_quiet)
            && !self.is_stuck()
    }
}

impl SchedulerState {
    /// Returns whether no stream waits, and no submitter holds off quiet calls.
    fn is_quiet(&self) -> bool {
        self.calls.hold_offs == 0 && self.blocked() == 0
    }

    /// Returns whether quiet calls must be made before streams may begin to wait.
    fn is_pressed(&self) -> bool {
        let calls = &self.calls;
        let is_much =
            calls.quiet_bytes > QUIET_MAX_BYTES || calls.waiting > 0 && !calls.quiet.is_empty();
        // Without a thread, no call would be made.
        is_much && self.has_thread && !calls.is_stuck()
    }

    /// Returns whether no stream may begin to wait.
    pub(super) fn is_halted(&self) -> bool {
        self.calls.needs_quiet() || self.is_pressed()
    }

    /// Returns whether no host function may begin. Host functions may wait for each other, so calls
    /// that are only due hold them back for a limited time.
    pub(super) fn halts_functions(&self) -> bool {
        let is_new = |since: Instant| since.elapsed() < MAKE_ROOM_WAIT;
        self.calls.needs_quiet() || self.is_pressed() && self.calls.pressed.is_none_or(is_new)
    }
}

impl Scheduler {
    /// Publishes whether streams may begin to wait. Threads can read this without locking the
    /// state.
    pub(super) fn publish(&self, state: &mut SchedulerState) {
        state.calls.pressed = match state.is_pressed() {
            true => state.calls.pressed.or_else(|| Some(Instant::now())),
            false => None,
        };
        self.is_halted.store(state.is_halted(), Ordering::Relaxed);
    }

    /// Defers a call, which frees `bytes` bytes. If the call can be made now, waits briefly for its
    /// return.
    pub(crate) fn call(
        self: &Arc<Self>,
        urgency: Urgency,
        bytes: usize,
        act: impl FnOnce() + Send + 'static,
    ) {
        let Some((has_returned, mut state)) = self.push(urgency, bytes, Box::new(act)) else {
            return;
        };
        let began = Instant::now();
        let is_returned = || has_returned.load(Ordering::Relaxed);
        let is_soon = urgency == Urgency::AtOnce || state.blocked() == 0;
        while is_soon && state.calls.has_runner && !is_returned() && !state.calls.is_stuck() {
            let Some(left) = DEFERRED_CALL_WAIT.checked_sub(began.elapsed()) else {
                break;
            };
            state = self.call_returned.wait_timeout(state, left).0;
        }
        let untold = state.untold.take();
        drop(state);
        tell(untold);
    }

    /// Defers a call like [`call`](Self::call), but does not wait for its return.
    pub(crate) fn call_later(
        self: &Arc<Self>,
        urgency: Urgency,
        bytes: usize,
        act: impl FnOnce() + Send + 'static,
    ) {
        let pushed = self.push(urgency, bytes, Box::new(act));
        // The lock is released before the error is logged.
        tell(pushed.and_then(|(_, mut state)| state.untold.take()));
    }

    fn push(
        self: &Arc<Self>,
        urgency: Urgency,
        bytes: usize,
        act: Box<dyn FnOnce() + Send>,
    ) -> Option<(Arc<AtomicBool>, MutexGuard<'_, SchedulerState>)> {
        if process::is_forked() {
            // A forked child must not call the driver. Threads that do not exist in the child may
            // hold the locks.
            std::mem::forget(act);
            return None;
        }
        let has_returned = Arc::new(AtomicBool::new(false));
        let call = DeferredCall {
            bytes,
            act,
            has_returned: Arc::clone(&has_returned),
        };
        let mut state = self.state();
        let is_first = state.calls.is_empty();
        match urgency {
            Urgency::WhenQuiet => state.calls.quiet.push_back(call),
            Urgency::AtOnce => state.calls.urgent.push_back(call),
        }
        state.calls.quiet_bytes += bytes;
        self.start_thread(&mut state);
        self.request_runner(&mut state);
        self.publish(&mut state);
        // The thread must learn of the first call. After that, it checks the calls by itself.
        if is_first {
            self.prompt_thread(&mut state);
        }
        Some((has_returned, state))
    }

    /// Makes the scheduler check its calls and streams now, even if it had no thread before.
    pub(crate) fn prompt(self: &Arc<Self>) {
        let mut state = self.state();
        self.start_thread(&mut state);
        self.request_runner(&mut state);
        self.prompt_thread(&mut state);
        self.publish(&mut state);
        let untold = state.untold.take();
        drop(state);
        tell(untold);
    }

    /// Requests a background thread for calls that can be made now, if there are any and no thread
    /// makes calls already. Returns whether a thread was requested.
    pub(super) fn request_runner(self: &Arc<Self>, state: &mut SchedulerState) -> bool {
        let calls = &state.calls;
        if calls.has_runner || calls.is_empty() {
            return false;
        }
        let can_begin = !calls.urgent.is_empty() || state.is_quiet();
        if !can_begin || !state.can_start_threads() {
            return false;
        }
        state.calls.has_runner = true;
        state.calls.requested = Some(Instant::now());
        let scheduler = Arc::clone(self);
        // A call may take as long as the program's streams wait.
        background::run_blocking(move || scheduler.make_calls());
        true
    }

    /// Makes calls on a background thread until no more calls can be made now.
    fn make_calls(&self) {
        driver::ignore_captures();
        let mut state = self.state();
        state.calls.requested = None;
        while let Some(call) = self.begin_call(&mut state) {
            state = self.finish_call(state, call);
            if state.calls.running.is_none() && state.calls.urgent.is_empty() {
                if state.calls.is_empty() {
                    break;
                }
                // Streams may continue before the remaining calls are made.
                drop(state);
                std::thread::sleep(DEFERRED_SLEEP_SHORTEST);
                state = self.state();
            }
        }
        state.calls.has_runner = false;
        self.publish(&mut state);
        self.call_returned.notify_all();
    }

    /// Takes the next call that can be made now, if there is one.
    fn begin_call(&self, state: &mut SchedulerState) -> Option<DeferredCall> {
        if let Some(call) = state.calls.urgent.pop_front() {
            state.calls.quiet_bytes -= call.bytes;
            // Published before the check of the streams (see `StreamWaits::extend`).
            state.calls.running = Some(Running::begin());
            self.publish(state);
            if !state.is_quiet() {
                // Streams already wait, so further streams may begin to wait too.
                let running = state.calls.running.as_mut();
                running.expect("begun above").is_quiet = false;
                self.publish(state);
            }
            return Some(call);
        }
        let bytes = state.calls.quiet.front()?.bytes;
        let running = state.calls.running.get_or_insert_with(Running::begin);
        running.begin_next(bytes);
        // Published before the check of the streams (see `StreamWaits::extend`).
        self.publish(state);
        if !state.is_quiet() {
            state.calls.running = None;
            self.publish(state);
            return None;
        }
        state.calls.quiet_bytes -= bytes;
        state.calls.quiet.pop_front()
    }

    fn finish_call<'a>(
        &'a self,
        state: MutexGuard<'a, SchedulerState>,
        call: DeferredCall,
    ) -> MutexGuard<'a, SchedulerState> {
        drop(state);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(call.act)) {
            // The drop of the panic's value may panic too.
            std::mem::forget(panic);
        }
        call.has_returned.store(true, Ordering::Relaxed);
        let mut state = self.state();
        // Further quiet calls follow for a limited time while no stream waits.
        let is_over = |running: &Running| running.began.elapsed() > DEFERRED_CALL_WAIT;
        let goes_on = state.calls.needs_quiet()
            && !state.calls.running.as_ref().is_some_and(is_over)
            && !state.calls.quiet.is_empty()
            && state.calls.urgent.is_empty();
        if !goes_on {
            state.calls.running = None;
        }
        self.publish(&mut state);
        self.call_returned.notify_all();
        state
    }

    /// Waits for a limited time until all quiet calls have returned. An allocation can then be
    /// tried again, or streams exist before they are needed. The caller holds no lock.
    #[cold]
    pub(crate) fn make_room(self: &Arc<Self>) {
        let start = Instant::now();
        let mut state = self.state();
        state.calls.waiting += 1;
        while !state.calls.quiet.is_empty() || state.calls.running.is_some() {
            if !self.start_thread(&mut state) || state.calls.is_stuck() {
                break;
            }
            self.request_runner(&mut state);
            self.publish(&mut state);
            let Some(left) = MAKE_ROOM_WAIT.checked_sub(start.elapsed()) else {
                break;
            };
            let left = left.min(DEFERRED_CALL_WAIT);
            state = self.call_returned.wait_timeout(state, left).0;
        }
        state.calls.waiting -= 1;
        self.publish(&mut state);
        let untold = state.untold.take();
        drop(state);
        tell(untold);
    }
}
