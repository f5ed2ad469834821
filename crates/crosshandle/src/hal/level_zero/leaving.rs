//! Threads of queues that were dropped before all was done.

use crate::os::process;
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

/// How long a context that the program lets go of waits for commands that wait for nobody. As a rule
/// they are done, and their thread only has to be given the time to see it.
const GRACE: Duration = Duration::from_secs(1);

thread_local! {
    /// Of a queue's thread: asking for the current one fails late in a thread's life.
    static OWN: Cell<Option<ThreadId>> = const { Cell::new(None) };
}

/// Those of a context.
#[derive(Default)]
pub(super) struct Leaving(Mutex<State>);

#[derive(Default)]
struct State {
    threads: Vec<Thread>,
    /// The program has let go of the context.
    is_closed: bool,
}

struct Thread {
    /// Whether no commands are left; may wait for that until then, if they wait for nobody.
    is_idle: Box<dyn Fn(Instant) -> bool + Send>,
    handle: JoinHandle<()>,
}

impl Leaving {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(
        &self,
        handle: JoinHandle<()>,
        is_idle: impl Fn(Instant) -> bool + Send + 'static,
    ) {
        let is_idle = Box::new(is_idle);
        let mut state = self.state();
        state.threads.retain(|thread| !thread.handle.is_finished());
        state.threads.push(Thread { is_idle, handle });
        let is_closed = state.is_closed;
        drop(state);
        if is_closed {
            self.join_until(Instant::now() + GRACE);
        }
    }

    /// The program has let go of the context: gives all a moment to come to an end.
    pub(super) fn close(&self) {
        self.state().is_closed = true;
        self.join_until(Instant::now() + GRACE);
    }

    /// Sees to it that of those that have nothing left to do all of the driver's is gone.
    pub(super) fn join(&self) {
        self.join_until(Instant::now());
    }

    fn join_until(&self, end: Instant) {
        if process::is_forked() {
            return;
        }
        let mut busy = std::mem::take(&mut self.state().threads);
        loop {
            // Some wait for others of these.
            let is_over = |thread: &Thread| !is_own(&thread.handle) && (thread.is_idle)(end);
            let (over, left): (Vec<_>, _) = busy.into_iter().partition(is_over);
            busy = left;
            let is_any = !over.is_empty();
            over.into_iter().for_each(|thread| join(thread.handle));
            if !is_any || busy.is_empty() {
                break;
            }
        }
        self.state().threads.append(&mut busy);
    }
}

/// A queue's thread begins.
pub(super) fn begin() {
    OWN.set(Some(thread::current().id()));
}

/// Waits for a thread that has nothing to do any more.
pub(super) fn join(thread: JoinHandle<()>) {
    if !is_own(&thread) {
        let _ = thread.join();
    }
}

/// Whether it is the caller.
pub(super) fn is_own(thread: &JoinHandle<()>) -> bool {
    OWN.get() == Some(thread.thread().id())
}
