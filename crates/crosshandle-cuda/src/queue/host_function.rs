//! The commands of a queue that end on the host: host functions of the program, and commands whose
//! waits may fail.
//!
//! The driver calls the host on a thread of its own, in the order of the stream, one function at a
//! time. A function must not call the driver or wait for a device on that thread. Therefore, a host
//! function of the program is only *announced* there. A background thread then runs it, one
//! function at a time for each queue, while the stream waits for a word. The check whether a
//! command failed takes place on the driver's thread.

use crate::driver;
use crate::memory::process_word::ProcessWord;
use crate::scheduler::{Tended, deferred_drop};
use crosshandle_events::Ticket;
use crosshandle_hal::common::user_code::{self, failure_text};
use crosshandle_hal::{HostFunction, WaitPoint};
use crosshandle_ipc::{EventCore, Profile};
use crosshandle_os::threads::background;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Weak};

/// A command that ends on the host. It runs once, or is cancelled.
pub(super) struct Job {
    task: Mutex<Option<Task>>,
    functions: Arc<HostFunctions>,
}

/// The task of a job.
pub(super) struct Task {
    /// The program's function, and the word for which the stream waits until the function has
    /// returned.
    pub(super) function: Option<(HostFunction, HostFence)>,
    /// The waits of the command. If one of them has failed, the command fails too.
    waits: Vec<WaitPoint>,
    pub(super) signal: Option<(Arc<EventCore>, Ticket)>,
}

/// A word that a stream waits for, and the number that lets the stream continue. If the driver
/// refuses a function, or will never call it, the function's number is not written. The stream may
/// still wait for earlier functions, and that number would release it too soon.
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

    /// Returns the pointer to pass to the driver together with [`announce`], which takes it back.
    pub(super) fn into_raw(self: Arc<Self>) -> *mut c_void {
        Arc::into_raw(self).cast_mut().cast()
    }

    /// Takes back the pointer that [`into_raw`](Self::into_raw) returned.
    ///
    /// # Safety
    /// `data` comes from `into_raw` and is taken back only once.
    pub(super) unsafe fn from_raw(data: *mut c_void) -> Arc<Self> {
        // SAFETY: promised by the caller.
        unsafe { Arc::from_raw(data.cast_const().cast()) }
    }

    /// Fails the job if it has not begun, because the driver will not call it. The caller drops the
    /// returned function without a lock, because it belongs to the program.
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
        // The word is written after the signal, so that later work in the stream follows the
        // signal.
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

    /// Completes the signal. Without a signal, keeps an error for the thread that finishes the
    /// queue.
    fn end(mut self, functions: &HostFunctions, result: Result<()>) {
        match (self.signal.take(), result) {
            (Some((event, ticket)), result) => event.complete(ticket, result.map_err(failure_text)),
            (None, Err(error)) => functions.note_error(error),
            (None, Ok(())) => {}
        }
    }
}

/// Starts a job. The driver calls this when the stream reaches the job.
///
/// # Safety
/// `job` comes from [`Job::into_raw`] and is passed to one call only.
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

/// The host functions of one queue. A background thread runs the announced functions in order.
pub(super) struct HostFunctions {
    state: Mutex<FunctionsState>,
    /// The queue whose streams continue after a function.
    queue: Weak<dyn Tended>,
}

#[derive(Default)]
struct FunctionsState {
    announced: VecDeque<Arc<Job>>,
    /// Whether a background thread runs announced functions, or has been requested.
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

    /// Adds an announced job, and requests a background thread if none is at work.
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
        // Dropped objects go to other threads, because later functions must not wait for a drop.
        deferred_drop::handing_over(|| {
            while let Some(job) = self.next() {
                job.run();
                // The stream continues, so it may accept more commands.
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

    /// Stores the error unless an earlier one is stored.
    pub(super) fn note_error(&self, error: Error) {
        self.state.lock().error.get_or_insert(error);
    }

    /// Takes the first error since the last call.
    pub(super) fn take_error(&self) -> Option<Error> {
        self.state.lock().error.take()
    }
}
