//! Threads of queues that were dropped before all was done.

use crate::os::process;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Those of a context.
#[derive(Default)]
pub(super) struct Leaving(Mutex<Vec<Thread>>);

struct Thread {
    /// Whether commands are left.
    is_busy: Box<dyn Fn() -> bool + Send>,
    handle: JoinHandle<()>,
}

impl Leaving {
    fn threads(&self) -> MutexGuard<'_, Vec<Thread>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, handle: JoinHandle<()>, is_busy: impl Fn() -> bool + Send + 'static) {
        let is_busy = Box::new(is_busy);
        let mut threads = self.threads();
        threads.retain(|thread| !thread.handle.is_finished());
        threads.push(Thread { is_busy, handle });
    }

    /// Sees to it that of those that have nothing left to do all of the driver's is gone.
    pub(super) fn join(&self) {
        if process::is_forked() {
            return;
        }
        let threads = std::mem::take(&mut *self.threads());
        for thread in threads.into_iter().filter(|thread| !(thread.is_busy)()) {
            join(thread.handle);
        }
    }
}

/// Waits for a thread that has nothing to do any more.
pub(super) fn join(thread: JoinHandle<()>) {
    if thread.thread().id() != std::thread::current().id() {
        let _ = thread.join();
    }
}
