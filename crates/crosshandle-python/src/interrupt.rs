//! Waits that let other Python threads run, and that end at Ctrl-C.
//!
//! | wait | how Ctrl-C is noticed |
//! |---|---|
//! | for an event or a queue | the wait is split into short timeouts, and signals are handled between them ([`wait`]) |
//! | for another process, in the library | the library checks for signals while it waits ([`released`]) |
//! | for anything else, such as another host | the call runs on a thread of its own ([`aside`]) |

use crate::error::{Failure, Result};
use crosshandle::Error;
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::cell::Cell;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Interval at which a wait checks for operating system signals such as Ctrl-C. Each check takes a
/// few microseconds.
pub(crate) const SLICE: Duration = Duration::from_millis(40);

/// Time for which an event loop spins on an event if the loop awaits nothing else.
///
/// After that time, the thread for awaited events takes over. A longer time catches slower replies,
/// but is wasted if no signal completes.
const LOOK: Duration = Duration::from_micros(20);

/// Spins for up to [`LOOK`], and returns whether the signal has completed.
pub(crate) fn look(py: Python<'_>, event: &crosshandle::Event, value: u64) -> Result<bool> {
    match py.detach(|| event.wait_value_timeout(value, LOOK)) {
        Err(Error::TimedOut(_)) => Ok(false),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(true),
    }
}

/// Converts a timeout in seconds. `None` is no timeout.
pub(crate) fn timeout(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else {
        return Ok(None);
    };
    match Duration::try_from_secs_f64(seconds) {
        Ok(timeout) => Ok(Some(timeout)),
        Err(_) if seconds > 0.0 => Ok(None),
        Err(_) => Err(PyValueError::new_err(format!(
            "a timeout is a number of seconds, not negative, or None: {seconds}"
        ))),
    }
}

/// Converts an option that is a number of seconds. A number that is too large becomes
/// [`Duration::MAX`].
pub(crate) fn seconds(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let given = seconds.is_some();
    Ok(timeout(seconds)?.or(given.then_some(Duration::MAX)))
}

thread_local! {
    /// The exception that a signal handler of Python raised. It is kept until the interrupted call
    /// returns.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Runs Python's pending signal handlers, and returns whether a handler raised an exception. Does
/// nothing on threads other than the main thread.
fn handle_signals() -> bool {
    let handled = Python::try_attach(|py| py.check_signals());
    match handled {
        Some(Err(raised)) => {
            RAISED.set(Some(raised));
            true
        }
        _ => false,
    }
}

/// Returns the exception that made a call fail with [`Error::Interrupted`].
pub(crate) fn raised() -> PyErr {
    RAISED
        .take()
        .unwrap_or_else(|| PyKeyboardInterrupt::new_err(()))
}

/// Makes a call without the interpreter's lock. Waits for other processes in the call end at Ctrl-C
/// and after `timeout`.
pub(crate) fn released<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    call: impl FnOnce() -> T + Send,
) -> T {
    py.detach(|| crosshandle::interruptible(handle_signals, timeout, call))
}

/// Makes a call that may take a while, without the interpreter's lock.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> crosshandle::Result<T> + Send,
) -> Result<T> {
    detached_for(py, None, call)
}

/// Makes a call that may block, without the interpreter's lock. The call waits for other processes
/// for at most `timeout`.
pub(crate) fn detached_for<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    call: impl FnOnce() -> crosshandle::Result<T> + Send,
) -> Result<T> {
    Ok(released(py, timeout, call)?)
}

/// Waits by calling `wait` with short timeouts, without the interpreter's lock, until it returns
/// something other than a timeout.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    wait: impl Fn(Duration) -> crosshandle::Result<T> + Sync,
) -> PyResult<T> {
    let slices = Slices::new(timeout);
    loop {
        let (slice, is_last) = slices.next(SLICE);
        match py.detach(|| wait(slice)) {
            Err(Error::TimedOut(_)) if !is_last => py.check_signals()?,
            Err(error) => return Err(Failure::from(error).into()),
            Ok(value) => return Ok(value),
        }
    }
}

/// A timeout that is split into short ones.
pub(crate) struct Slices(Option<Instant>);

impl Slices {
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// Returns the next timeout, which is at most `most`, and whether it is the last one.
    pub(crate) fn next(&self, most: Duration) -> (Duration, bool) {
        let Some(end) = self.0 else {
            return (most, false);
        };
        let left = end.saturating_duration_since(Instant::now());
        (left.min(most), left <= most)
    }
}

/// Makes a call on a new thread, and waits for its result. If Ctrl-C or the timeout comes first,
/// the thread finishes the call in the background and drops the result. Returns `None` after the
/// timeout.
pub(crate) fn aside<T: Send + 'static>(
    py: Python<'_>,
    timeout: Option<Duration>,
    call: impl FnOnce() -> T + Send + 'static,
) -> PyResult<Option<T>> {
    let (sender, mut receiver) = sync_channel(1);
    crosshandle::adapter_support::run_blocking(move || {
        // Sending fails if the caller has stopped waiting.
        let _ = sender.send(call());
    });
    let slices = Slices::new(timeout);
    loop {
        let (slice, is_last) = slices.next(SLICE);
        let receiver = &mut receiver;
        match py.detach(move || receiver.recv_timeout(slice)) {
            Ok(result) => return Ok(Some(result)),
            Err(RecvTimeoutError::Timeout) if is_last => return Ok(None),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the call ended without a result"));
            }
        }
    }
}
