//! The drain of a context, which holds the threads of dropped queues' lists until their commands
//! have ended.

use crosshandle_os::process;
use crosshandle_types::sync::{Deadline, Mutex};
use std::cell::Cell;
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

/// Time that the drop of a context waits for commands that wait neither for the host nor for
/// another process, so that no thread is in the driver when the process ends.
const CONTEXT_DROP_TIMEOUT: Duration = Duration::from_secs(1);

thread_local! {
    /// The id of the calling list thread. It is stored because `thread::current` fails late in a
    /// thread's life.
    static OWN: Cell<Option<ThreadId>> = const { Cell::new(None) };
}

#[derive(Default)]
pub(crate) struct Drain(Mutex<DrainState>);

#[derive(Default)]
struct DrainState {
    lists: Vec<DrainingList>,
    /// Whether the program has dropped the context.
    is_closed: bool,
}

struct DrainingList {
    /// Returns whether all commands have ended. May wait for this until the deadline, unless a
    /// command waits for the host or another process.
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

    /// Marks the context as dropped by the program, and gives all lists a short time to end.
    pub(crate) fn close(&self) {
        self.0.lock().is_closed = true;
        self.join_until(Deadline::after(CONTEXT_DROP_TIMEOUT));
    }

    /// Joins the threads of idle lists, so that these lists release their driver objects.
    pub(crate) fn join_idle(&self) {
        self.join_until(Deadline::expired());
    }

    fn join_until(&self, deadline: Deadline) {
        if process::is_forked() {
            return;
        }
        let mut busy = std::mem::take(&mut self.0.lock().lists);
        loop {
            // Some of these lists wait for others.
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

/// Marks the calling thread as a list's thread. Each list thread calls this first.
pub(super) fn begin_own_thread() {
    OWN.set(Some(thread::current().id()));
}

/// Waits until a thread without further work has ended, unless it is the calling thread.
pub(super) fn join(thread: JoinHandle<()>) {
    if !is_own(&thread) {
        let _ = thread.join();
    }
}

/// Returns whether a thread is the calling thread.
pub(super) fn is_own(thread: &JoinHandle<()>) -> bool {
    OWN.get() == Some(thread.thread().id())
}
