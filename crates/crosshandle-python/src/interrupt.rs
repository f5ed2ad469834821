//! Waits that let other Python threads run and that Ctrl-C interrupts.
//!
//! | wait | how it notices Ctrl-C |
//! |---|---|
//! | for an event or a queue | [`wait`] repeats a short timeout, and runs Python's signal handlers in between |
//! | for another process, inside a library call | the library checks for operating system signals while it waits ([`released`]) |
//! | for anything else, such as another host | [`aside`] runs the call on a background thread |

use crate::error::{Failure, Result};
use crosshandle::Error;
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::cell::Cell;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Interval at which a wait checks for operating system signals such as Ctrl-C (SIGINT). Each check
/// takes a few microseconds.
pub(crate) const SLICE: Duration = Duration::from_millis(40);

/// Maximum time that an event loop spins on an event. It spins only if its tasks await no other
/// signal.
///
/// After that time, a background thread waits for the event. A longer time catches slower replies,
/// but wastes more processor time if the signal does not complete.
const LOOK: Duration = Duration::from_micros(20);

/// Spins for at most [`LOOK`], and returns whether signal `value` has completed.
pub(crate) fn look(py: Python<'_>, event: &crosshandle::Event, value: u64) -> Result<bool> {
    match py.detach(|| event.wait_value_timeout(value, LOOK)) {
        Err(Error::TimedOut(_)) => Ok(false),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(true),
    }
}

/// Converts a timeout in seconds. `None`, and a value too large for a [`Duration`], mean no
/// timeout. Fails if the timeout is negative.
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

/// Converts an option that is given in seconds. A number too large for a [`Duration`] becomes
/// [`Duration::MAX`].
pub(crate) fn seconds(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let given = seconds.is_some();
    Ok(timeout(seconds)?.or(given.then_some(Duration::MAX)))
}

thread_local! {
    /// The exception that a Python signal handler raised. It is stored here until the interrupted
    /// library call returns.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Runs Python's pending signal handlers. Returns whether a handler raised an exception. On threads
/// other than the main thread, it does nothing and returns false.
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

/// Returns the exception of the signal handler that interrupted a library call. The call itself
/// fails with [`Error::Interrupted`].
pub(crate) fn raised() -> PyErr {
    RAISED
        .take()
        .unwrap_or_else(|| PyKeyboardInterrupt::new_err(()))
}

/// Runs `call` without the interpreter's lock. While `call` waits for another process, Ctrl-C
/// interrupts it, and it fails after `timeout`.
pub(crate) fn released<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    call: impl FnOnce() -> T + Send,
) -> T {
    py.detach(|| crosshandle::interruptible(handle_signals, timeout, call))
}

/// Runs a library call that may take some time, without the interpreter's lock. Ctrl-C interrupts
/// it while it waits for another process.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> crosshandle::Result<T> + Send,
) -> Result<T> {
    detached_for(py, None, call)
}

/// Runs a library call that may block, without the interpreter's lock. If the call waits for other
/// processes longer than `timeout`, it fails with a timeout error.
pub(crate) fn detached_for<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    call: impl FnOnce() -> crosshandle::Result<T> + Send,
) -> Result<T> {
    Ok(released(py, timeout, call)?)
}

/// Calls `wait` repeatedly with short timeouts, without the interpreter's lock, until it succeeds
/// or fails. Returns an error after `timeout`. If a Python signal handler raises an exception,
/// returns that exception.
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

/// A timeout that is split into short intervals, so that a wait can check for Ctrl-C between them.
pub(crate) struct Slices(Option<Instant>);

impl Slices {
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// Returns the length of the next interval, which is at most `most`, and whether it is the last
    /// one.
    pub(crate) fn next(&self, most: Duration) -> (Duration, bool) {
        let Some(end) = self.0 else {
            return (most, false);
        };
        let left = end.saturating_duration_since(Instant::now());
        (left.min(most), left <= most)
    }
}

/// Runs `call` on a background thread and waits for its result. Returns `None` after the timeout.
/// After Ctrl-C, fails with `KeyboardInterrupt`, or with the exception of the program's signal
/// handler. In both cases the thread finishes the call in the background and drops its result.
pub(crate) fn aside<T: Send + 'static>(
    py: Python<'_>,
    timeout: Option<Duration>,
    call: impl FnOnce() -> T + Send + 'static,
) -> PyResult<Option<T>> {
    let (sender, mut receiver) = sync_channel(1);
    crosshandle::adapter_support::run_blocking(move || {
        // Sending fails if the caller no longer waits. The result is then dropped.
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
