//! Completions whose turn has not come.
//!
//! Signal *n + 7* completes only after signal *n*. Whoever completes it earlier leaves that to
//! one thread of this process, so that neither a caller nor a queue waits for somebody else's
//! signal. It is rare: eight signals of one event must be unfinished at once.

use super::event::EventCore;
use crate::counter::{Completion, FailureReason, Ticket};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How often to look again while something is pending.
const INTERVAL: Duration = Duration::from_micros(500);

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

fn run() {
    loop {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        while state.pending.is_empty() {
            state = ADDED.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let mut pending = std::mem::take(&mut state.pending);
        drop(state);
        pending.retain(|late| {
            // The signal before may be that of a process that died.
            late.event.bury();
            late.event.try_finish(late.ticket, late.failure) == Completion::TooEarly
        });
        if !pending.is_empty() {
            std::thread::sleep(INTERVAL);
            let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
            state.pending.append(&mut pending);
        }
    }
}
