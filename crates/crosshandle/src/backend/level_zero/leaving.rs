//! Threads of queues that were dropped before all was done.

use crate::os::process;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a context that is dropped waits for commands that wait for nobody. As a rule they are
/// done, and their thread only has to be given the time to see it.
const GRACE: Duration = Duration::from_secs(1);

/// Those of a context.
#[derive(Default)]
pub(super) struct Leaving(Mutex<Vec<Thread>>);

struct Thread {
    /// Whether no commands are left; waits for that until then, if they wait for nobody.
    is_idle: Box<dyn Fn(Instant) -> bool + Send>,
    handle: JoinHandle<()>,
}

impl Leaving {
    fn threads(&self) -> MutexGuard<'_, Vec<Thread>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(
        &self,
        handle: JoinHandle<()>,
        is_idle: impl Fn(Instant) -> bool + Send + 'static,
    ) {
        let is_idle = Box::new(is_idle);
        let mut threads = self.threads();
        threads.retain(|thread| !thread.handle.is_finished());
        threads.push(Thread { is_idle, handle });
    }

    /// Sees to it that of those that have nothing left to do all of the driver's is gone.
    pub(super) fn join(&self) {
        if process::is_forked() {
            return;
        }
        let threads = std::mem::take(&mut *self.threads());
        let end = Instant::now() + GRACE;
        for Thread { is_idle, handle } in threads {
            let is_other = handle.thread().id() != thread::current().id();
            if is_other && is_idle(end) {
                join(handle);
            }
        }
    }
}

/// Waits for a thread that has nothing to do any more.
pub(super) fn join(thread: JoinHandle<()>) {
    if thread.thread().id() != thread::current().id() {
        let _ = thread.join();
    }
}
