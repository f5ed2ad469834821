//! The part of a queue on the host, in the order of its streams: host functions of the program, and
//! signals of commands that may fail.
//!
//! The driver calls from a thread of its own, one function at a time. A function must not call the
//! driver or wait for a device there. So a host function is only announced there. It runs on a
//! background thread, one after the other for each queue, while the stream waits for a word. A
//! check whether a command failed is made at once.

use crate::error::{Error, Result};
use crate::event_protocol::Ticket;
use crate::hal::common::user_code::{self, failure_text};
use crate::hal::cuda::driver;
use crate::hal::cuda::memory::process_word::ProcessWord;
use crate::hal::cuda::scheduler::{Tended, deferred_drop};
use crate::hal::{HostFunction, WaitPoint};
use crate::ipc::{EventCore, Profile};
use crate::sync::Mutex;
use crate::threads::background;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Weak};

/// A command that ends on the host. Done once, or cancelled.
pub(super) struct Job {
    task: Mutex<Option<Task>>,
    functions: Arc<HostFunctions>,
}

/// The task of a job.
pub(super) struct Task {
    /// The program's function; the stream goes on when it has returned.
    pub(super) function: Option<(HostFunction, HostFence)>,
    /// The waits of the command; if one of them has failed, so does the command.
    waits: Vec<WaitPoint>,
    pub(super) signal: Option<(Arc<EventCore>, Ticket)>,
}

/// A word that a stream waits for, and the number that lets it go on. The word of a function that
/// the driver did not take, or will not call, is never written: it would let pass what waits for
/// the functions before it.
#[derive(Clone)]
pub(super) struct HostFence {
    pub(super) word: Arc<ProcessWord>,
    pub(super) number: u32,
}

impl Job {
    pub(super) fn new(functions: &Arc<HostFunctions>, task: Task) -> Arc<Self> {
        Arc::new(Self {
            task: Mutex::new(Some(task)),
            functions: Arc::clone(functions),
        })
    }

    /// Returns the pointer to hand to the driver with [`announce`], which takes it back.
    pub(super) fn into_raw(self: Arc<Self>) -> *mut c_void {
        Arc::into_raw(self).cast_mut().cast()
    }

    /// Takes back the pointer that [`into_raw`](Self::into_raw) returned.
    ///
    /// # Safety
    /// Each only once.
    pub(super) unsafe fn from_raw(data: *mut c_void) -> Arc<Self> {
        // SAFETY: promised by the caller.
        unsafe { Arc::from_raw(data.cast_const().cast()) }
    }

    /// Fails the job, if it hasn't begun: the driver won't call. The caller drops the returned
    /// function without a lock: it is the program's.
    pub(super) fn cancel(&self, error: &Error) -> Option<HostFunction> {
        let mut task = self.task.lock().take()?;
        let function = task.function.take();
        task.end(&self.functions, Err(error.clone()));
        function.map(|(function, _fence)| function)
    }

    fn run(&self) {
        let Some(mut task) = self.task.lock().take() else {
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
        let (function, fence) = task.function.take().unzip();
        let result = match (failed, function) {
            (Some(error), function) => {
                deferred_drop::drop_or_defer(function);
                Err(error)
            }
            (None, Some(function)) => user_code::call(function),
            (None, None) => Ok(()),
        };
        if fence.is_some()
            && let Some(profile) = task.profile()
        {
            Profile::stamp(&profile.ended);
        }
        task.end(&self.functions, result);
        // Only now, so that later work in the stream comes after the signal.
        if let Some(fence) = fence {
            fence.word.write(fence.number);
        }
    }
}

impl Task {
    pub(super) fn new(function: Option<(HostFunction, HostFence)>, waits: &[WaitPoint]) -> Self {
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

    /// Signals, or keeps the error for the thread that finishes the queue.
    fn end(mut self, functions: &HostFunctions, result: Result<()>) {
        match (self.signal.take(), result) {
            (Some((event, ticket)), result) => event.complete(ticket, result.map_err(failure_text)),
            (None, Err(error)) => functions.note_error(error),
            (None, Ok(())) => {}
        }
    }
}

/// Begins a job: the driver calls this when it is the job's turn.
///
/// # Safety
/// `job` comes from [`Job::into_raw`], and goes to one call only.
pub(super) unsafe extern "C" fn announce(job: *mut c_void) {
    // SAFETY: promised by the caller.
    let job = unsafe { Job::from_raw(job) };
    let task = job.task.lock();
    let has_function = task.as_ref().is_some_and(|task| task.function.is_some());
    drop(task);
    if has_function {
        Arc::clone(&job.functions).add(job);
    } else {
        job.run();
    }
}

/// The host functions of one queue: announced ones run on a background thread, in order.
pub(super) struct HostFunctions {
    state: Mutex<FunctionsState>,
    /// The queue whose streams go on after a function.
    queue: Weak<dyn Tended>,
}

#[derive(Default)]
struct FunctionsState {
    announced: VecDeque<Arc<Job>>,
    /// A background job runs announced functions, or will.
    has_runner: bool,
    /// The first error of a command that signals no event.
    error: Option<Error>,
}

impl HostFunctions {
    pub(super) fn new(queue: Weak<dyn Tended>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            queue,
        })
    }

    /// Adds a job whose turn has come.
    fn add(self: Arc<Self>, job: Arc<Job>) {
        let mut state = self.state.lock();
        state.announced.push_back(job);
        if !std::mem::replace(&mut state.has_runner, true) {
            drop(state);
            background::run_blocking(move || self.run_announced());
        }
    }

    fn run_announced(&self) {
        driver::ignore_captures();
        // Functions behind this one must not wait for a drop.
        deferred_drop::handing_over(|| {
            while let Some(job) = self.next() {
                job.run();
                // Its stream goes on, and may take more.
                if let Some(queue) = self.queue.upgrade() {
                    queue.feed();
                }
            }
        });
    }

    fn next(&self) -> Option<Arc<Job>> {
        let mut state = self.state.lock();
        let job = state.announced.pop_front();
        state.has_runner = job.is_some();
        job
    }

    /// Keeps an error, if it is the first.
    pub(super) fn note_error(&self, error: Error) {
        self.state.lock().error.get_or_insert(error);
    }

    /// Takes the first error since the last call.
    pub(super) fn take_error(&self) -> Option<Error> {
        self.state.lock().error.take()
    }
}
