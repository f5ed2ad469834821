//! Completions whose turn has not come.
//!
//! Signal *n + 7* completes only after signal *n*. Whoever completes it earlier leaves that to
//! one thread of this process, so that neither a caller nor a queue waits for somebody else's
//! signal. It is rare: eight signals of one event must be unfinished at once.

use super::event::EventCore;
use crate::event_protocol::{Completion, FailureReason, Ticket};
use crate::os::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How often to look again while something is pending.
const INTERVAL: Duration = Duration::from_micros(500);
/// How long who lets go of an event waits for the thread to do so too.
const LONGEST: Duration = Duration::from_millis(100);

struct Deferred {
    event: Arc<EventCore>,
    ticket: Ticket,
    failure: Option<FailureReason>,
}

#[derive(Default)]
struct State {
    pending: Vec<Deferred>,
    has_thread: bool,
}

static STATE: Mutex<State> = Mutex::new(State {
    pending: Vec::new(),
    has_thread: false,
});
static ADDED: Condvar = Condvar::new();

/// Whether the thread is at a round: it may still have events whose signals it has completed. Changed
/// under the lock.
static IS_AT_ROUND: AtomicBool = AtomicBool::new(false);
/// A round is over.
static OVER: Condvar = Condvar::new();

/// Finishes a ticket as soon as the signals before it allow.
pub(super) fn finish_later(event: Arc<EventCore>, ticket: Ticket, failure: Option<FailureReason>) {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    state.pending.push(Deferred {
        event,
        ticket,
        failure,
    });
    if !state.has_thread {
        let spawned = std::thread::Builder::new()
            .name("crosshandle-late".into())
            .spawn(run);
        state.has_thread = spawned.is_ok();
        if let Err(error) = spawned {
            tracing::error!(%error, "a signal stays unfinished until a thread can be started");
        }
    }
    drop(state);
    ADDED.notify_one();
}

/// Waits, as a rule not at all, until the thread has let go of events whose signals are complete. To
/// be called before an event goes: with the thread's would go all of the driver's that is behind it,
/// perhaps while the process ends, which drivers don't survive.
#[inline]
pub(crate) fn settle() {
    // Who saw a signal of this round complete, sees this too.
    if IS_AT_ROUND.load(Ordering::Relaxed) {
        await_round();
    }
}

#[cold]
fn await_round() {
    // The thread and its lock are the parent's.
    if process::is_forked() {
        return;
    }
    let state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let is_at_round = |_: &mut State| IS_AT_ROUND.load(Ordering::Relaxed);
    drop(OVER.wait_timeout_while(state, LONGEST, is_at_round));
}

fn run() {
    loop {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        while state.pending.is_empty() {
            state = ADDED.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let mut pending = std::mem::take(&mut state.pending);
        IS_AT_ROUND.store(true, Ordering::Relaxed);
        drop(state);
        pending.retain(|late| {
            // The signal before may be that of a process that died.
            late.event.fail_orphans();
            late.event.try_finish(late.ticket, late.failure) == Completion::TooEarly
        });
        let is_early = !pending.is_empty();
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        state.pending.append(&mut pending);
        IS_AT_ROUND.store(false, Ordering::Relaxed);
        drop(state);
        OVER.notify_all();
        if is_early {
            std::thread::sleep(INTERVAL);
        }
    }
}
