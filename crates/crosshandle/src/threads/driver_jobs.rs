//! Background jobs that call a driver, and a wait for them.
//!
//! Drivers don't survive calls, least of all those that free memory, while the process ends. So a
//! thread that lets go of its last context waits for such jobs of other threads ([`wait`]).

use super::background;
use super::tuning::DRIVER_JOB_WAIT;
use crate::os::fork::PerProcess;
use crate::sync::{Condvar, Deadline, Mutex};
use std::collections::BTreeSet;

struct Unfinished {
    /// The number of the next [`Announced`].
    next: u64,
    numbers: BTreeSet<u64>,
    /// Threads in [`wait`]. Without any, an end is not notified: that is a system call for each message
    /// of a peer.
    waiting: usize,
}

static UNFINISHED: PerProcess<Mutex<Unfinished>> = PerProcess::new(|| {
    Mutex::new(Unfinished {
        next: 0,
        numbers: BTreeSet::new(),
        waiting: 0,
    })
});
/// Notified of each one that ends.
static ENDED: PerProcess<Condvar> = PerProcess::new(Condvar::new);

/// Work that [`wait`] waits for, until this is dropped.
#[must_use = "nobody waits for the work once this is dropped"]
pub(crate) struct Announced(u64);

/// Announces work that may call a driver, or hand on jobs that do.
pub(crate) fn announce() -> Announced {
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
pub(crate) fn run(job: impl FnOnce() + Send + 'static) {
    let announced = announce();
    background::run(move || {
        // Ends when the job has, also if it panics.
        let _announced = announced;
        job();
    });
}

/// Drops a value on a background thread: its drop may call a driver, or run the program's code.
pub(crate) fn drop_later(value: impl Send + 'static) {
    run(move || drop(value));
}

/// Waits until all work has ended that was announced before this call, and the jobs that such work
/// handed on, at most for [`DRIVER_JOB_WAIT`]. A background thread does not wait, since it might wait
/// for itself.
pub(crate) fn wait() {
    if background::is_own_thread() {
        return;
    }
    let deadline = Deadline::after(DRIVER_JOB_WAIT);
    let mut unfinished = UNFINISHED.lock();
    unfinished.waiting += 1;
    // The second time for the jobs that were handed on: they were announced before the work ended.
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
        // As a rule the wait has begun by then; if not, this shows nothing.
        thread::sleep(Duration::from_millis(50));
        drop_later(Slow(Arc::clone(&is_dropped)));
        drop(announced);
        waiter.join().unwrap();
        assert!(is_dropped.load(Ordering::SeqCst));
    }
}
