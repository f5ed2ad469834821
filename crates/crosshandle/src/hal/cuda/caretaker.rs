//! One thread that looks after the queues of the process while they have something to do.
//!
//! Nobody may ever call a queue again that has commands under way. This thread lets go of what
//! they used once they are done, notices that the device has stopped, so that those who wait for
//! its signals get an error, and does what a process that died left undone for a stream that waits
//! for it. It costs nothing per command, and ends when there is nothing to do.
//!
//! While commands are kept back it looks more often. It calls nothing of the driver that waits for a
//! stream: what does is for the thread of [`waits`](super::waits).

use super::driver::Driver;
use super::leftovers;
use super::queue::Inner;
use rustix::thread::set_current_timer_slack;
use std::num::NonZeroU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(50);
/// Looks without a busy queue after which the thread ends.
const PATIENCE: u32 = 40;

/// How long it sleeps in a hurry: this part of the time since something last went on, within
/// bounds.
const STEPS: u32 = 8;
const SHORTEST_NAP: Duration = Duration::from_micros(10);
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// How late the system may wake it then, in nanoseconds.
const SLACK: NonZeroU64 = NonZeroU64::new(1_000).unwrap();

struct Care {
    queues: Vec<Arc<Inner>>,
    has_thread: bool,
    is_in_hurry: bool,
}

static CARE: Mutex<Care> = Mutex::new(Care {
    queues: Vec::new(),
    has_thread: false,
    is_in_hurry: false,
});

/// Somebody is in a hurry.
static HURRIED: Condvar = Condvar::new();

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

/// Finds out which streams are done where there are too many, of all queues that nobody uses at the
/// moment.
#[cold]
pub(super) fn settle() {
    let queues = care().queues.clone();
    for queue in queues {
        queue.settle();
    }
}

/// Makes the thread look often, since something is kept back.
pub(super) fn hurry() {
    care().is_in_hurry = true;
    HURRIED.notify_one();
}

/// Does what was kept back, where that can be done now. Whether anything was, and whether
/// something is left.
fn feed() -> (bool, bool) {
    let queues = care().queues.clone();
    let (mut has_fed, mut is_left) = (false, false);
    for queue in queues {
        let (fed, holds) = queue.feed();
        has_fed |= fed;
        is_left |= holds;
    }
    (has_fed, is_left)
}

/// Sleeps in a hurry, when something last went on at `latest`.
fn nap(latest: Instant) {
    let nap = latest.elapsed() / STEPS;
    std::thread::sleep(nap.clamp(SHORTEST_NAP, LONGEST_NAP));
}

fn run() {
    leftovers::leave_to_others();
    if let Ok(driver) = Driver::get() {
        driver.ignore_captures();
    }
    if let Err(error) = set_current_timer_slack(Some(SLACK)) {
        tracing::debug!(%error, "naps are longer than they should be");
    }
    let mut idle = 0;
    let mut looked = Instant::now();
    // When something last went on, while something is kept back.
    let mut latest = None;
    loop {
        let mut care = care();
        if latest.is_none() && !care.is_in_hurry {
            let waited = HURRIED.wait_timeout_while(care, INTERVAL, |care| !care.is_in_hurry);
            care = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if std::mem::take(&mut care.is_in_hurry) {
            latest = Some(Instant::now());
        }
        drop(care);
        if let Some(since) = latest {
            match feed() {
                (_, false) => latest = None,
                (true, true) => latest = Some(Instant::now()),
                (false, true) => {
                    settle();
                    nap(since);
                }
            }
        }
        if looked.elapsed() < INTERVAL {
            continue;
        }
        looked = Instant::now();
        look();
        let is_left = leftovers::look();
        let mut care = self::care();
        let has_nothing = care.queues.is_empty() && !is_left;
        idle = if has_nothing { idle + 1 } else { 0 };
        if idle > PATIENCE {
            care.has_thread = false;
            return;
        }
    }
}
