//! Background jobs that call a driver, and a function that waits for them.
//!
//! Drivers don't survive calls that run while the process ends, least of all calls that free
//! memory. So a thread that drops its last context waits for such jobs of other threads ([`wait`]).

use super::background;
use crate::fork::PerProcess;
use crosshandle_types::sync::{Condvar, Deadline, Mutex};
use std::collections::BTreeSet;
use std::time::Duration;

/// Maximum time that a thread waits for background jobs that call a driver
/// ([`driver_jobs::wait`](super::driver_jobs::wait)). If it is too short, the process may end
/// during a call to a slow driver, which drivers don't survive. If a driver hangs, the end of a
/// context is delayed by this time.
const DRIVER_JOB_WAIT: Duration = Duration::from_secs(1);

struct Unfinished {
    /// The number of the next [`Announced`].
    next: u64,
    numbers: BTreeSet<u64>,
    /// Number of threads in [`wait`]. If it is 0, the end of a job is not notified. This saves a
    /// system call for each message of a peer.
    waiting: usize,
}

static UNFINISHED: PerProcess<Mutex<Unfinished>> = PerProcess::new(|| {
    Mutex::new(Unfinished {
        next: 0,
        numbers: BTreeSet::new(),
        waiting: 0,
    })
});
/// Notified when an [`Announced`] is dropped.
static ENDED: PerProcess<Condvar> = PerProcess::new(Condvar::new);

/// Announced work. [`wait`] waits until this value is dropped.
#[must_use = "nobody waits for the work once this is dropped"]
pub struct Announced(u64);

/// Announces work that may call a driver, or that may submit jobs that call a driver.
pub fn announce() -> Announced {
    let mut unfinished = UNFINISHED.lock();
    let number = unfinished.next;
    unfinished.next += 1;
    unfinished.numbers.insert(number);
    Announced(number)
}

impl Drop for Announced {
    fn drop(&mut self) {
        let mut unfinished = UNFINISHED.lock();
        unfinished.numbers.remove(&self.0);
        if unfinished.waiting > 0 {
            ENDED.notify_all();
        }
    }
}

/// Runs a job that calls a driver on a background thread.
pub fn run(job: impl FnOnce() + Send + 'static) {
    let announced = announce();
    background::run(move || {
        // Dropped when the job ends, even if it panics.
        let _announced = announced;
        job();
    });
}

/// Drops a value on a background thread, because the drop may call a driver or run the program's
/// code.
pub fn drop_later(value: impl Send + 'static) {
    run(move || drop(value));
}

/// Waits until all work that was announced before this call has ended, including jobs that this
/// work submits. Waits for at most [`DRIVER_JOB_WAIT`]. Returns at once on a background thread,
/// which might otherwise wait for itself.
pub fn wait() {
    if background::is_own_thread() {
        return;
    }
    let deadline = Deadline::after(DRIVER_JOB_WAIT);
    let mut unfinished = UNFINISHED.lock();
    unfinished.waiting += 1;
    // The second round waits for jobs that the announced work submitted. They were announced before
    // that work ended.
    for _ in 0..2 {
        let end = unfinished.next;
        let has_earlier = |unfinished: &mut Unfinished| {
            let earliest = unfinished.numbers.first();
            earliest.is_some_and(|number| *number < end)
        };
        let is_late;
        (unfinished, is_late) = ENDED.wait_until_while(unfinished, deadline, has_earlier);
        if is_late {
            unfinished.waiting -= 1;
            drop(unfinished);
            tracing::warn!("a driver takes long to free something in the background");
            return;
        }
    }
    unfinished.waiting -= 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    struct Slow(Arc<AtomicBool>);

    impl Drop for Slow {
        fn drop(&mut self) {
            thread::sleep(Duration::from_millis(50));
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_wait_is_for_earlier_drops_alone() {
        let is_dropped = Arc::new(AtomicBool::new(false));
        drop_later(Slow(Arc::clone(&is_dropped)));
        wait();
        assert!(is_dropped.load(Ordering::SeqCst));
    }

    #[test]
    fn a_wait_is_also_for_what_earlier_work_hands_on() {
        let is_dropped = Arc::new(AtomicBool::new(false));
        let announced = announce();
        let waiter = thread::spawn(wait);
        // Usually the wait has begun by then. If it has not, this test shows nothing.
        thread::sleep(Duration::from_millis(50));
        drop_later(Slow(Arc::clone(&is_dropped)));
        drop(announced);
        waiter.join().unwrap();
        assert!(is_dropped.load(Ordering::SeqCst));
    }
}
