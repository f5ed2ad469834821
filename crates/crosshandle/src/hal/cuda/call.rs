//! What a queue does on the host, in the order of its streams: functions of its user, and signals
//! of commands that may fail.
//!
//! The driver calls from a thread of its own on which nobody may call the driver or wait for a
//! device, and it calls one function at a time. So a user's function is only announced there and
//! runs on a thread of the queue, while the stream waits for a word; what merely finds out whether
//! a command failed is done at once.

use super::leftovers;
use super::queue::Inner;
use super::words::Word;
use crate::error::{Error, Result};
use crate::event_protocol::Ticket;
use crate::hal::{HostFunction, WaitPoint};
use crate::ipc::{EventCore, Profile};
use crate::os::process;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// A command that ends on the host. Done once, or cancelled.
pub(super) struct Job {
    state: Mutex<Option<Task>>,
    worker: Arc<Worker>,
}

/// What there is to do.
pub(super) struct Task {
    /// What the user wants to be called; the stream goes on when it has returned.
    pub(super) function: Option<(HostFunction, Gate)>,
    /// If one of these has failed, so does the command.
    waits: Vec<WaitPoint>,
    pub(super) signal: Option<(Arc<EventCore>, Ticket)>,
}

/// A word that a stream waits for, and the number that lets it go on. That of a function which
/// the driver did not take, or will not call, is never written: it would let pass what waits for
/// the functions before it.
pub(super) struct Gate {
    pub(super) word: Arc<Word>,
    pub(super) number: u32,
}

impl Gate {
    fn open(&self) {
        self.word.write(self.number);
    }
}

impl Job {
    pub(super) fn new(worker: &Arc<Worker>, task: Task) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(Some(task)),
            worker: Arc::clone(worker),
        })
    }

    /// What to hand to the driver with [`announce`], which takes it back.
    pub(super) fn into_raw(self: Arc<Self>) -> *mut c_void {
        Arc::into_raw(self).cast_mut().cast()
    }

    fn take(&self) -> Option<Task> {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Takes back what [`into_raw`](Self::into_raw) gave.
    ///
    /// # Safety
    /// Each only once.
    pub(super) unsafe fn from_raw(data: *mut c_void) -> Arc<Self> {
        // SAFETY: promised by the caller.
        unsafe { Arc::from_raw(data.cast_const().cast()) }
    }

    /// Fails it, if it hasn't begun: the driver won't call. The function that comes back is to be
    /// dropped without a lock: it is the user's.
    pub(super) fn cancel(&self, error: &Error) -> Option<HostFunction> {
        let mut task = self.take()?;
        let function = task.function.take();
        task.end(&self.worker, Err(error.clone()));
        function.map(|(function, _gate)| function)
    }

    fn run(&self) {
        let Some(mut task) = self.take() else {
            return;
        };
        let failed = task
            .waits
            .iter()
            .find_map(|wait| wait.event.result(wait.number)?.err());
        if task.function.is_some()
            && let Some(profile) = task.profile()
        {
            Profile::stamp(&profile.started);
        }
        let (function, gate) = task.function.take().unzip();
        let result = match (failed, function) {
            (Some(error), function) => {
                leftovers::discard(function);
                Err(error)
            }
            (None, Some(function)) => call(function),
            (None, None) => Ok(()),
        };
        if gate.is_some()
            && let Some(profile) = task.profile()
        {
            Profile::stamp(&profile.ended);
        }
        task.end(&self.worker, result);
        // Only now, so that whatever comes later in the stream comes after the signal.
        if let Some(gate) = gate {
            gate.open();
        }
    }
}

impl Task {
    pub(super) fn new(function: Option<(HostFunction, Gate)>, waits: &[WaitPoint]) -> Self {
        let copy = |wait: &WaitPoint| WaitPoint {
            event: Arc::clone(&wait.event),
            ..*wait
        };
        Self {
            function,
            waits: waits.iter().map(copy).collect(),
            signal: None,
        }
    }

    fn profile(&self) -> Option<&Profile> {
        self.signal.as_ref()?.0.profile()
    }

    /// Signals, or keeps the error for whoever finishes the queue.
    fn end(mut self, worker: &Worker, result: Result<()>) {
        match (self.signal.take(), result) {
            (Some((event, ticket)), result) => event.complete(ticket, result.map_err(text_of)),
            (None, Err(error)) => worker.note(error),
            (None, Ok(())) => {}
        }
    }
}

/// An error as the waiters for a failed command get to see it.
pub(super) fn text_of(error: Error) -> Arc<str> {
    match error {
        Error::CommandFailed(message) => message,
        error => error.to_string().into(),
    }
}

/// Calls a function of the user. A panic must not take the queue and its waiters down.
fn call(function: HostFunction) -> Result<()> {
    // Its error's text and drop are the user's code too.
    let call = || function().map_err(|error| error.to_string());
    let message = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(message)) => message,
        Err(panic) => {
            std::mem::forget(panic);
            "a host function panicked".into()
        }
    };
    Err(Error::CommandFailed(message.into()))
}

/// What the driver calls when it is a job's turn.
///
/// # Safety
/// `job` comes from [`Job::into_raw`], and goes to one call only.
pub(super) unsafe extern "C" fn announce(job: *mut c_void) {
    // SAFETY: promised by the caller.
    let job = unsafe { Job::from_raw(job) };
    let has_function = {
        let state = job.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.as_ref().is_some_and(|task| task.function.is_some())
    };
    if has_function {
        let worker = Arc::clone(&job.worker);
        worker.add(job);
    } else {
        job.run();
    }
}

/// The thread of a queue, started with its first function.
#[derive(Default)]
pub(super) struct Worker {
    state: Mutex<Jobs>,
    added: Condvar,
    /// Whose functions it runs.
    queue: OnceLock<Weak<Inner>>,
}

#[derive(Default)]
struct Jobs {
    announced: VecDeque<Arc<Job>>,
    has_thread: bool,
    is_closed: bool,
    /// The first error of a command that signals no event.
    error: Option<Error>,
}

impl Worker {
    fn state(&self) -> MutexGuard<'_, Jobs> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose functions it will run.
    pub(super) fn serve(&self, queue: &Arc<Inner>) {
        let _ = self.queue.set(Arc::downgrade(queue));
    }

    /// Makes sure that there is a thread.
    pub(super) fn start(self: &Arc<Self>) -> Result<()> {
        let mut state = self.state();
        if !state.has_thread {
            let worker = Arc::clone(self);
            std::thread::Builder::new()
                .name("crosshandle-call".into())
                .spawn(move || worker.work())
                .map_err(|error| Error::LimitReached {
                    what: format!("a queue's thread cannot be started: {error}"),
                    remedy: "raise RLIMIT_NPROC (ulimit -u)".into(),
                })?;
            state.has_thread = true;
        }
        Ok(())
    }

    fn add(&self, job: Arc<Job>) {
        self.state().announced.push_back(job);
        self.added.notify_one();
    }

    /// Keeps an error, if it is the first.
    pub(super) fn note(&self, error: Error) {
        self.state().error.get_or_insert(error);
    }

    /// The first error since the last call.
    pub(super) fn take_error(&self) -> Option<Error> {
        self.state().error.take()
    }

    /// Lets the thread end: no job will come.
    pub(super) fn close(&self) {
        if process::is_forked() {
            return;
        }
        self.state().is_closed = true;
        self.added.notify_one();
    }

    fn work(&self) {
        leftovers::leave_to_others();
        loop {
            let mut state = self.state();
            let job = loop {
                if let Some(job) = state.announced.pop_front() {
                    break job;
                }
                if state.is_closed {
                    return;
                }
                state = self
                    .added
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            job.run();
            // Its stream goes on, and may take more.
            if let Some(queue) = self.queue.get().and_then(Weak::upgrade) {
                queue.feed();
            }
        }
    }
}
