//! The background service: threads that run what may block or must be tried again.
//!
//! A job runs on an idle background thread, or on a new one if none is idle, so that a job which
//! waits for another one gets it. Beyond [`MAX_THREADS`] jobs wait in a queue, except those that
//! the program's own functions may hold up ([`run_blocking`]). A thread without a job ends after
//! [`IDLE`].

use super::ThreadKind;
use crate::error::Result;
use crate::os::process;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a thread without a job stays, in case another job comes. Halved or doubled: threads are
/// started more or less often by programs that need one now and then.
const IDLE: Duration = Duration::from_secs(2);
/// Threads for jobs of [`run`]. Halved: jobs that wait for each other stall sooner. Doubled: a burst
/// of blocked drops takes more threads of the process's limit.
const MAX_THREADS: usize = 16;

/// Something to run in the background.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

struct Service {
    jobs: VecDeque<Job>,
    /// Jobs that have not ended, queued ones included.
    unfinished: usize,
    threads: usize,
    idle: usize,
}

static SERVICE: Mutex<Service> = Mutex::new(Service {
    jobs: VecDeque::new(),
    unfinished: 0,
    threads: 0,
    idle: 0,
});
/// Notified of each job that is queued.
static QUEUED: Condvar = Condvar::new();
/// Notified when no job is unfinished.
static ALL_FINISHED: Condvar = Condvar::new();

thread_local! {
    static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

fn service() -> MutexGuard<'static, Service> {
    SERVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a job soon. If no thread can be started the job waits for one that ends its own job, or for
/// the next call. A forked child drops nothing and runs nothing: the job is forgotten.
pub fn run(job: impl FnOnce() + Send + 'static) {
    submit(Box::new(job), MAX_THREADS);
}

/// Runs a job soon that may block for as long as the program likes: however many of them block, the
/// next one gets a thread.
pub fn run_blocking(job: impl FnOnce() + Send + 'static) {
    submit(Box::new(job), usize::MAX);
}

/// Makes sure that at least one background thread runs, so that a later job cannot fail for want of
/// one.
///
/// # Errors
/// [`Error::LimitReached`](crate::Error::LimitReached) if the system starts no more threads.
pub(crate) fn ensure_thread() -> Result<()> {
    let mut service = service();
    match service.threads {
        0 => service.start(),
        _ => Ok(()),
    }
}

/// Whether the calling thread belongs to the service.
pub(crate) fn is_own_thread() -> bool {
    IS_BACKGROUND.get()
}

/// Waits until no job is unfinished, at most until `deadline`; whether that came about. A background
/// thread does not wait, since it would wait for itself.
pub(crate) fn wait_idle(deadline: Instant) -> bool {
    if is_own_thread() || process::is_forked() {
        return false;
    }
    let mut service = service();
    while service.unfinished > 0 {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let waited = ALL_FINISHED.wait_timeout(service, left);
        service = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    true
}

fn submit(job: Job, max_threads: usize) {
    if process::is_forked() {
        // The threads and their lock are the parent's.
        std::mem::forget(job);
        return;
    }
    let mut service = service();
    service.jobs.push_back(job);
    service.unfinished += 1;
    let is_short = service.idle < service.jobs.len() && service.threads < max_threads;
    if is_short && let Err(error) = service.start() {
        tracing::warn!(%error, "a background job waits for a thread");
    }
    drop(service);
    QUEUED.notify_one();
}

impl Service {
    fn start(&mut self) -> Result<()> {
        ThreadKind::Background.start(work)?;
        self.threads += 1;
        Ok(())
    }
}

fn work() {
    IS_BACKGROUND.set(true);
    let mut service = service();
    loop {
        if let Some(job) = service.jobs.pop_front() {
            drop(service);
            // A panic of the user's code must not take the service down.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(job)) {
                // Its drop may panic again.
                std::mem::forget(panic);
            }
            service = self::service();
            service.unfinished -= 1;
            if service.unfinished == 0 {
                ALL_FINISHED.notify_all();
            }
            continue;
        }
        service.idle += 1;
        let waited = QUEUED.wait_timeout(service, IDLE);
        let (locked, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        service = locked;
        service.idle -= 1;
        if timeout.timed_out() && service.jobs.is_empty() {
            service.threads -= 1;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn jobs_that_wait_for_later_ones_get_them() {
        let (done, is_done) = channel();
        let mut next = None;
        for _ in 0..2 * MAX_THREADS {
            let (let_go, waits) = channel::<()>();
            let (done, before) = (done.clone(), next.replace(let_go));
            run_blocking(move || {
                let _ = waits.recv_timeout(SOON);
                drop(before);
                done.send(()).unwrap();
            });
        }
        // The last one lets the one before go on, and so on.
        drop(next);
        let began = Instant::now();
        for _ in 0..2 * MAX_THREADS {
            is_done.recv_timeout(SOON).expect("every job ends");
        }
        assert!(began.elapsed() < SOON / 2);
    }

    #[test]
    fn a_job_that_panics_takes_nothing_down() {
        let (done, is_done) = channel();
        run(|| panic!("on purpose"));
        run(move || done.send(is_own_thread()).unwrap());
        assert_eq!(is_done.recv_timeout(SOON), Ok(true));
        assert!(!is_own_thread());
    }
}
