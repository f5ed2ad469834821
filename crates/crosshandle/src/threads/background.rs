//! The background service: threads for jobs that may block or must be tried again.
//!
//! A job runs on an idle background thread, or on a new one if none is idle. Jobs of [`run`] share
//! [`MAX_BOUNDED_JOBS`] threads and queue beyond that; jobs of [`run_blocking`] and [`repeat`] come
//! on top and never queue, so that the program's own functions, which may block for ever, hold up
//! nothing. A thread without a job ends after [`BACKGROUND_IDLE`].

use super::ThreadKind;
use super::tuning::{BACKGROUND_IDLE, MAX_BOUNDED_JOBS};
use crate::error::Result;
use crate::observe::Limit;
use crate::os::fork::PerProcess;
use crate::sync::{Condvar, Mutex, MutexGuard};
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

/// A job: a function to run in the background.
type Job = Box<dyn FnOnce() + Send>;

/// The class of a job, by whether the number of threads that run such jobs has a limit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Bounded,
    Blocking,
}

struct Service {
    /// Jobs of [`run`] that no thread has taken yet.
    bounded: VecDeque<Job>,
    /// Jobs of [`run_blocking`] that no thread has taken yet.
    blocking: VecDeque<Job>,
    /// Jobs of [`run`] that a thread is running.
    running_bounded: usize,
    /// Threads that look for a job before they sleep or end: idle ones, and those being started.
    available: usize,
}

static SERVICE: PerProcess<Mutex<Service>> = PerProcess::new(|| {
    Mutex::new(Service {
        bounded: VecDeque::new(),
        blocking: VecDeque::new(),
        running_bounded: 0,
        available: 0,
    })
});
/// Notified of each job that is queued.
static QUEUED: PerProcess<Condvar> = PerProcess::new(Condvar::new);

thread_local! {
    static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// Runs a job soon. A job that panics ends; nothing else does.
///
/// If the system starts no more threads, the job waits until a background thread has ended another
/// job, or until the next call that can start one. A forked child has a service of its own.
pub fn run(job: impl FnOnce() + Send + 'static) {
    submit(Box::new(job), Class::Bounded);
}

/// Runs a job soon that may block for as long as the program likes: it takes no thread from the
/// jobs of [`run`].
pub fn run_blocking(job: impl FnOnce() + Send + 'static) {
    submit(Box::new(job), Class::Blocking);
}

/// Calls `round` soon, and again `interval` after it returned as long as it returns `true`. A round
/// that panics counts as `true`.
pub(crate) fn repeat(interval: Duration, mut round: impl FnMut() -> bool + Send + 'static) {
    run_blocking(move || {
        while contain(&mut round).unwrap_or(true) {
            thread::sleep(interval);
        }
    });
}

/// Makes sure that a thread is available beside those that queued jobs will take, so that a job which
/// follows does not wait for one.
///
/// # Errors
/// [`Error::LimitReached`](crate::Error::LimitReached) if the system starts no more threads.
pub(crate) fn ensure_thread() -> Result<()> {
    let service = SERVICE.lock();
    match service.available > service.startable() {
        true => Ok(()),
        false => start_thread(service),
    }
}

/// Returns whether the calling thread belongs to the service.
pub(crate) fn is_own_thread() -> bool {
    IS_BACKGROUND.get()
}

/// Starts threads if there are jobs that none will take, because earlier starts have failed. Returns
/// whether there are such jobs still: who can should call this again after
/// [`START_RETRY`](super::tuning::START_RETRY).
pub(crate) fn start_missing_threads() -> bool {
    start_missing(SERVICE.lock()).is_err()
}

fn submit(job: Job, class: Class) {
    let mut service = SERVICE.lock();
    match class {
        Class::Bounded => service.bounded.push_back(job),
        Class::Blocking => service.blocking.push_back(job),
    }
    // Also if a thread is started: an idle one may be faster.
    QUEUED.notify_one();
    // What waits for a thread has its turn later.
    let _ = start_missing(service);
}

/// Starts threads while those available are fewer than the jobs that may run now: one as a rule,
/// more after starts that failed.
fn start_missing(mut service: MutexGuard<'_, Service>) -> Result<()> {
    while service.available < service.startable() {
        start_thread(service).inspect_err(|error| {
            static LIMIT: Limit = Limit::new();
            if let Some(suppressed) = LIMIT.admit() {
                tracing::warn!(%error, suppressed, "a background job waits for a thread");
            }
        })?;
        service = SERVICE.lock();
    }
    Ok(())
}

fn start_thread(mut service: MutexGuard<'_, Service>) -> Result<()> {
    // Counted before, so that the lock is not held while the system starts the thread.
    service.available += 1;
    drop(service);
    let started = ThreadKind::Background.start(work).map(drop);
    started.inspect_err(|_| SERVICE.lock().available -= 1)
}

impl Service {
    /// Returns the number of queued jobs that may run now.
    fn startable(&self) -> usize {
        let room = MAX_BOUNDED_JOBS - self.running_bounded;
        self.blocking.len() + self.bounded.len().min(room)
    }

    /// Takes the next job that may run now.
    fn take(&mut self) -> Option<(Job, Class)> {
        if self.running_bounded < MAX_BOUNDED_JOBS
            && let Some(job) = self.bounded.pop_front()
        {
            self.running_bounded += 1;
            return Some((job, Class::Bounded));
        }
        Some((self.blocking.pop_front()?, Class::Blocking))
    }
}

/// Runs jobs until there was none for a while.
fn work() {
    IS_BACKGROUND.set(true);
    let mut service = SERVICE.lock();
    let mut is_idle_time_over = false;
    loop {
        if let Some((job, class)) = service.take() {
            service.available -= 1;
            drop(service);
            let _ = contain(job);
            service = SERVICE.lock();
            service.available += 1;
            service.running_bounded -= usize::from(class == Class::Bounded);
            is_idle_time_over = false;
            continue;
        }
        if is_idle_time_over {
            service.available -= 1;
            return;
        }
        (service, is_idle_time_over) = QUEUED.wait_timeout(service, BACKGROUND_IDLE);
    }
}

/// Calls `f`; `None` if it panicked.
pub(crate) fn contain<T>(f: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => Some(value),
        Err(panic) => {
            // Its drop may panic again.
            std::mem::forget(panic);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const DEADLINE: Duration = Duration::from_secs(20);

    /// Starts jobs that block until the sender is dropped, and waits until all of them run.
    fn block(count: usize, run: impl Fn(Job)) -> Sender<()> {
        let (release, released) = channel::<()>();
        let released = std::sync::Arc::new(std::sync::Mutex::new(released));
        let (started, has_started) = channel();
        for _ in 0..count {
            let (released, started) = (std::sync::Arc::clone(&released), started.clone());
            run(Box::new(move || {
                started.send(()).unwrap();
                let _ = released.lock().map(|released| released.recv());
            }));
        }
        for _ in 0..count {
            has_started.recv_timeout(DEADLINE).expect("a job starts");
        }
        release
    }

    fn announce(run: impl Fn(Job)) -> Receiver<()> {
        let (done, is_done) = channel();
        run(Box::new(move || done.send(()).unwrap()));
        is_done
    }

    #[test]
    fn jobs_that_wait_for_later_ones_get_them() {
        let (done, is_done) = channel();
        let mut next = None;
        for _ in 0..2 * MAX_BOUNDED_JOBS {
            let (release, released) = channel::<()>();
            let (done, before) = (done.clone(), next.replace(release));
            run_blocking(move || {
                let _ = released.recv_timeout(DEADLINE);
                drop(before);
                done.send(()).unwrap();
            });
        }
        // The last job lets the one before go on, and so on.
        drop(next);
        for _ in 0..2 * MAX_BOUNDED_JOBS {
            is_done.recv_timeout(DEADLINE).expect("every job ends");
        }
    }

    #[test]
    fn jobs_that_block_hold_up_no_others() {
        let blocking = |job: Job| run_blocking(job);
        let bounded = |job: Job| run(job);
        let first = block(MAX_BOUNDED_JOBS + 1, blocking);
        announce(bounded)
            .recv_timeout(DEADLINE)
            .expect("a bounded job runs beside blocking ones");
        // As many as may run at a time, and one more in the queue before the blocking one. Other
        // tests' jobs count too, so not all of these need to start.
        let (release, released) = channel::<()>();
        let released = std::sync::Arc::new(std::sync::Mutex::new(released));
        for _ in 0..=MAX_BOUNDED_JOBS {
            let released = std::sync::Arc::clone(&released);
            run(move || drop(released.lock().map(|released| released.recv())));
        }
        announce(blocking)
            .recv_timeout(DEADLINE)
            .expect("a blocking job runs beside bounded ones");
        drop(release);
        announce(bounded)
            .recv_timeout(DEADLINE)
            .expect("queued jobs run in the end");
        drop(first);
    }

    #[test]
    fn a_job_that_panics_takes_nothing_down() {
        let (done, is_done) = channel();
        run(|| panic!("on purpose"));
        run(move || done.send(is_own_thread()).unwrap());
        assert_eq!(is_done.recv_timeout(DEADLINE), Ok(true));
        assert!(!is_own_thread());
    }

    #[test]
    fn a_repeated_job_goes_on_after_a_panic_and_ends_when_it_says_so() {
        let (done, is_done) = channel();
        let mut rounds = 0;
        repeat(Duration::from_micros(1), move || {
            rounds += 1;
            assert_ne!(rounds, 2, "on purpose");
            done.send(rounds).unwrap();
            rounds < 4
        });
        for round in [1, 3, 4] {
            assert_eq!(is_done.recv_timeout(DEADLINE), Ok(round));
        }
        // The job is dropped, and its sender with it.
        assert!(is_done.recv_timeout(DEADLINE).is_err());
    }
}
