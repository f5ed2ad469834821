//! The background service: threads for jobs that may block or must be retried.
//!
//! A job runs on an idle background thread, or on a new thread if none is idle. Jobs of [`run`]
//! share [`MAX_BOUNDED_JOBS`] threads, and wait in a queue if all of these are busy. Jobs of
//! [`run_blocking`] and [`repeat`] have additional threads and never wait in a queue. So functions
//! of the program, which may block forever, do not delay other jobs. A thread without a job ends
//! after [`BACKGROUND_IDLE`].

use super::ThreadKind;
use crate::fork::PerProcess;
use crosshandle_types::error::Result;
use crosshandle_types::observe::Limit;
use crosshandle_types::sync::{Condvar, Mutex, MutexGuard};
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

/// Time after which an idle background thread ends. Starting a new thread takes about 50 µs.
const BACKGROUND_IDLE: Duration = Duration::from_secs(2);

/// Maximum number of jobs of [`background::run`](super::background::run) that run at the same time.
/// With a lower limit, drops that block in a driver delay other drops sooner. With a higher limit,
/// a burst of drops uses more of the process's thread limit.
const MAX_BOUNDED_JOBS: usize = 16;

/// A function to run in the background.
type Job = Box<dyn FnOnce() + Send>;

/// The class of a job, which determines whether the number of threads for such jobs is limited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Bounded,
    Blocking,
}

struct Service {
    /// Jobs of [`run`] that have not started yet.
    bounded: VecDeque<Job>,
    /// Jobs of [`run_blocking`] that have not started yet.
    blocking: VecDeque<Job>,
    /// Jobs of [`run`] that a thread is running.
    running_bounded: usize,
    /// Number of threads that will look for a job before they sleep or end. These are idle threads
    /// and threads that are being started.
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
/// Notified when a job is queued.
static QUEUED: PerProcess<Condvar> = PerProcess::new(Condvar::new);

thread_local! {
    static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// Runs a job on a background thread. If the job panics, only the job ends.
///
/// If the system refuses to start a thread, the job waits until a background thread finishes
/// another job, or until a later call starts a thread. A forked child has its own service.
pub fn run(job: impl FnOnce() + Send + 'static) {
    submit(Box::new(job), Class::Bounded);
}

/// Runs a job that may block indefinitely on a background thread. The job does not use one of the
/// threads for jobs of [`run`].
pub fn run_blocking(job: impl FnOnce() + Send + 'static) {
    submit(Box::new(job), Class::Blocking);
}

/// Calls `round` on a background thread, and again `interval` after each return, until it returns
/// `false`. If a call panics, the calls continue.
pub fn repeat(interval: Duration, mut round: impl FnMut() -> bool + Send + 'static) {
    run_blocking(move || {
        while contain(&mut round).unwrap_or(true) {
            thread::sleep(interval);
        }
    });
}

/// Makes sure that one more thread is available than the queued jobs need, so that a job that is
/// submitted next does not wait for a thread.
///
/// # Errors
/// [`Error::LimitReached`](crosshandle_types::error::Error::LimitReached) if the system refuses to
/// start a thread.
pub fn ensure_thread() -> Result<()> {
    let service = SERVICE.lock();
    match service.available > service.startable() {
        true => Ok(()),
        false => start_thread(service),
    }
}

/// Returns whether the calling thread belongs to the service.
pub fn is_own_thread() -> bool {
    IS_BACKGROUND.get()
}

/// Starts threads for queued jobs that have no thread because earlier starts failed. Returns
/// whether such jobs remain. The caller should then call this function again after
/// [`START_RETRY`](super::START_RETRY).
pub fn start_missing_threads() -> bool {
    start_missing(SERVICE.lock()).is_err()
}

fn submit(job: Job, class: Class) {
    let mut service = SERVICE.lock();
    match class {
        Class::Bounded => service.bounded.push_back(job),
        Class::Blocking => service.blocking.push_back(job),
    }
    // Notified even if a new thread is started below, because an idle thread may be faster.
    QUEUED.notify_one();
    // If the start fails, the job stays queued and a later start is tried.
    let _ = start_missing(service);
}

/// Starts threads until there are as many available threads as jobs that may run now. Usually
/// starts one, and more after failed starts.
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
    // Counted before the start, so that the lock is not held while the system starts the thread.
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

/// Runs jobs until the thread has been idle for [`BACKGROUND_IDLE`].
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

/// Calls `f` and returns its result, or `None` if it panicked.
pub fn contain<T>(f: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => Some(value),
        Err(panic) => {
            // Dropping the panic's payload may panic again.
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
        // The last job releases the one before it, and so on.
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
        // Submits as many jobs as may run at a time, and one more that stays in the queue before
        // the blocking job. Jobs of other tests also run, so not all of these need to start.
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
        // The sender is dropped together with the job.
        assert!(is_done.recv_timeout(DEADLINE).is_err());
    }
}
