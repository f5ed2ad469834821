//! Waits that let other Python threads run, and end at Ctrl-C.

use crate::error::{Failure, Result};
use crosshandle::Error;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// The longest time that a wait does not look for signals of the system such as Ctrl-C's. Halved: a
/// long wait costs twice the processor time, which is a few microseconds each time. Doubled: Ctrl-C ends a
/// wait up to 80 ms late.
pub(crate) const SLICE: Duration = Duration::from_millis(40);

/// How long an event loop that awaits nothing else looks at an event before it leaves that to the thread for
/// awaited events, which costs it about as much. Halved: answers of other processes that take a few
/// microseconds are awaited three times as long. Doubled: an await that finds nothing costs that much more.
const LOOK: Duration = Duration::from_micros(20);

/// Returns whether a signal completes while an event loop looks at the event for a moment.
pub(crate) fn look(py: Python<'_>, event: &crosshandle::Event, value: u64) -> Result<bool> {
    match py.detach(|| event.wait_value_timeout(value, LOOK)) {
        Err(Error::TimedOut(_)) => Ok(false),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(true),
    }
}

/// Returns a timeout that was given in seconds.
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

/// Waits by calling `wait` with short timeouts, without the interpreter's lock, until it ends otherwise
/// than by its timeout.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    wait: impl Fn(Duration) -> crosshandle::Result<T> + Sync,
) -> PyResult<T> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let slice = left.map_or(SLICE, |left| left.min(SLICE));
        let is_last = left.is_some_and(|left| left <= SLICE);
        match py.detach(|| wait(slice)) {
            Err(Error::TimedOut(_)) if !is_last => py.check_signals()?,
            Err(error) => return Err(Failure::from(error).into()),
            Ok(value) => return Ok(value),
        }
    }
}

/// Makes a call that may take a while, without the interpreter's lock.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> crosshandle::Result<T> + Send,
) -> Result<T> {
    Ok(py.detach(call)?)
}
