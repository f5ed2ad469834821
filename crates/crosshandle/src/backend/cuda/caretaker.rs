//! One thread that looks after the queues of the process while they have something to do.
//!
//! Nobody may ever call a queue again that has commands under way. This thread lets go of what
//! they used once they are done, notices that the device has stopped, so that those who wait for
//! its signals get an error, and does what a process that died left undone for a stream that waits
//! for it. It costs nothing per command, and ends when there is nothing to do.

use super::driver::Driver;
use super::queue::Inner;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(50);
/// Looks without a busy queue after which the thread ends.
const PATIENCE: u32 = 40;

struct Care {
    queues: Vec<Arc<Inner>>,
    has_thread: bool,
}

static CARE: Mutex<Care> = Mutex::new(Care {
    queues: Vec::new(),
    has_thread: false,
});

fn care() -> MutexGuard<'static, Care> {
    CARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks after a queue, and keeps it, until [`forget`]. The caller has locked the queue, and it is
/// not looked after yet.
#[cold]
pub(super) fn watch(queue: &Arc<Inner>) {
    let mut care = care();
    care.queues.push(Arc::clone(queue));
    if !care.has_thread {
        let thread = std::thread::Builder::new().name("crosshandle-care".into());
        let spawned = thread.spawn(run);
        care.has_thread = spawned.is_ok();
        if let Err(error) = spawned {
            tracing::warn!(%error, "queues are only looked after when they are called");
        }
    }
}

/// No longer looks after a queue that has nothing to do. The caller has locked it.
pub(super) fn forget(queue: &Arc<Inner>) {
    care().queues.retain(|other| !Arc::ptr_eq(other, queue));
}

/// Looks after all queues now: lets go of what their commands don't use any more.
pub(super) fn look() {
    let queues = care().queues.clone();
    for queue in queues {
        queue.tend();
    }
}

fn run() {
    if let Ok(driver) = Driver::get() {
        driver.ignore_captures();
    }
    let mut idle = 0;
    loop {
        std::thread::sleep(INTERVAL);
        look();
        let mut care = care();
        idle = if care.queues.is_empty() { idle + 1 } else { 0 };
        if idle > PATIENCE {
            care.has_thread = false;
            return;
        }
    }
}
