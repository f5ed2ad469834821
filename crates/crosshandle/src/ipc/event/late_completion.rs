//! Late completions: signals that were completed before their turn.
//!
//! Signal *n + 7* completes only after signal *n*. A thread that completes it earlier leaves that to
//! the background service, so that neither a caller nor a queue waits for another one's signal. It
//! is rare: eight signals of one event must be unfinished at once.

use super::EventCore;
use crate::event_protocol::{Completion, FailureReason, Ticket};
use crate::ipc::tuning::{LATE_COMPLETION_INTERVAL, LATE_ROUND_WAIT};
use crate::os::process;
use crate::sync::{Condvar, Mutex};
use crate::threads::background;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A signal to be completed once its turn has come.
struct Late {
    event: Arc<EventCore>,
    ticket: Ticket,
    failure: Option<FailureReason>,
}

struct LateSignals {
    pending: Vec<Late>,
    /// Whether the background service has a job that tries the late signals.
    has_job: bool,
}

static LATE: Mutex<LateSignals> = Mutex::new(LateSignals {
    pending: Vec::new(),
    has_job: false,
});

/// Whether the job tries the late signals at this moment: it may still have events whose signals it
/// has completed. Changed under the lock.
static IS_IN_ROUND: AtomicBool = AtomicBool::new(false);
/// Notified at the end of each round.
static ROUND_ENDED: Condvar = Condvar::new();

/// Completes a ticket as soon as the signals before it allow.
pub(super) fn complete_later(
    event: Arc<EventCore>,
    ticket: Ticket,
    failure: Option<FailureReason>,
) {
    let mut late = LATE.lock();
    late.pending.push(Late {
        event,
        ticket,
        failure,
    });
    let had_job = std::mem::replace(&mut late.has_job, true);
    drop(late);
    if had_job {
        // The job may still wait for a thread.
        background::start_missing_threads();
    } else {
        background::repeat(LATE_COMPLETION_INTERVAL, try_all);
    }
}

/// Waits, as a rule not at all, until the job has dropped the events whose signals it has completed.
///
/// To be called before an event is dropped: otherwise the job may drop it last, and with it what it
/// keeps of the driver's, perhaps while the process ends, which drivers don't survive.
#[inline]
pub(crate) fn wait_for_round() {
    // A thread that saw a signal of this round complete sees this too.
    if IS_IN_ROUND.load(Ordering::Relaxed) {
        wait_for_round_end();
    }
}

#[cold]
fn wait_for_round_end() {
    // The job, and whichever thread holds the lock, are the parent's. A job that drops events does
    // not wait for itself.
    if process::is_forked() || background::is_own_thread() {
        return;
    }
    let is_in_round = |_: &mut LateSignals| IS_IN_ROUND.load(Ordering::Relaxed);
    let _ = ROUND_ENDED.wait_timeout_while(LATE.lock(), LATE_ROUND_WAIT, is_in_round);
}

/// Tries all late signals once, and returns whether some are left.
fn try_all() -> bool {
    let mut round = Round::start();
    round.pending.retain(|late| {
        // The signal before may be that of a process that died.
        late.event.fail_orphans();
        late.event.try_finish(late.ticket, late.failure) == Completion::TooEarly
    });
    round.end(false)
}

/// A round, from when its signals are taken out until those that are left are back.
struct Round {
    pending: Vec<Late>,
    is_over: bool,
}

impl Round {
    fn start() -> Self {
        let mut late = LATE.lock();
        IS_IN_ROUND.store(true, Ordering::Relaxed);
        Self {
            pending: std::mem::take(&mut late.pending),
            is_over: false,
        }
    }

    /// Returns whether there is another round to come: if signals are left, or `always`.
    fn end(&mut self, always: bool) -> bool {
        self.is_over = true;
        let mut late = LATE.lock();
        late.pending.append(&mut self.pending);
        late.has_job = always || !late.pending.is_empty();
        let has_job = late.has_job;
        IS_IN_ROUND.store(false, Ordering::Relaxed);
        drop(late);
        ROUND_ENDED.notify_all();
        has_job
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        // A panic ended it, after which the job goes on.
        if !self.is_over {
            self.end(true);
        }
    }
}
