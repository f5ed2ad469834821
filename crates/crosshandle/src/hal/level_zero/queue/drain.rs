//! The drain of a context: threads of lists whose queue was dropped before all commands had ended.

use crate::hal::level_zero::tuning::CONTEXT_DROP_TIMEOUT;
use crate::os::process;
use crate::sync::{Deadline, Mutex};
use std::cell::Cell;
use std::thread::{self, JoinHandle, ThreadId};

thread_local! {
    /// The id of a list's thread: asking for the current thread fails late in a thread's life.
    static OWN: Cell<Option<ThreadId>> = const { Cell::new(None) };
}

#[derive(Default)]
pub(crate) struct Drain(Mutex<DrainState>);

#[derive(Default)]
struct DrainState {
    lists: Vec<DrainingList>,
    /// The program has dropped the context.
    is_closed: bool,
}

struct DrainingList {
    /// Returns whether all commands have ended; may wait for that until the deadline, unless they
    /// wait for the host or another process.
    is_idle: Box<dyn Fn(Deadline) -> bool + Send>,
    thread: JoinHandle<()>,
}

impl Drain {
    /// Takes over the thread of a list.
    pub(super) fn add(
        &self,
        thread: JoinHandle<()>,
        is_idle: impl Fn(Deadline) -> bool + Send + 'static,
    ) {
        let is_idle = Box::new(is_idle);
        let mut state = self.0.lock();
        state.lists.retain(|list| !list.thread.is_finished());
        state.lists.push(DrainingList { is_idle, thread });
        let is_closed = state.is_closed;
        drop(state);
        if is_closed {
            self.join_until(Deadline::after(CONTEXT_DROP_TIMEOUT));
        }
    }

    /// Gives all lists a moment to end: the program has dropped the context.
    pub(crate) fn close(&self) {
        self.0.lock().is_closed = true;
        self.join_until(Deadline::after(CONTEXT_DROP_TIMEOUT));
    }

    /// Joins the threads of lists without commands, so that all that they have of the driver is gone.
    pub(crate) fn join_idle(&self) {
        self.join_until(Deadline::now());
    }

    fn join_until(&self, deadline: Deadline) {
        if process::is_forked() {
            return;
        }
        let mut busy = std::mem::take(&mut self.0.lock().lists);
        loop {
            // Some lists wait for others of these.
            let is_idle = |list: &DrainingList| !is_own(&list.thread) && (list.is_idle)(deadline);
            let (idle, left): (Vec<_>, _) = busy.into_iter().partition(is_idle);
            busy = left;
            let has_ended_some = !idle.is_empty();
            idle.into_iter().for_each(|list| join(list.thread));
            if !has_ended_some || busy.is_empty() {
                break;
            }
        }
        self.0.lock().lists.append(&mut busy);
    }
}

/// Marks the calling thread as a list's. To be called first by each of them.
pub(super) fn begin_own_thread() {
    OWN.set(Some(thread::current().id()));
}

/// Waits for the end of a thread that has nothing left to do, unless it is the caller.
pub(super) fn join(thread: JoinHandle<()>) {
    if !is_own(&thread) {
        let _ = thread.join();
    }
}

/// Returns whether a thread is the calling one.
pub(super) fn is_own(thread: &JoinHandle<()>) -> bool {
    OWN.get() == Some(thread.thread().id())
}
