//! Notifications of completed signals, for event loops such as asyncio.

use crate::error::{Failure, Result, exception};
use crate::event::Event;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits for any number of signals on behalf of an event loop. The notifier has a file descriptor,
/// which becomes readable when one of the signals has completed or failed. `Event.reached` uses one
/// notifier for each event loop.
///
/// >>> import select
/// >>> event, notifier = crosshandle.event(), crosshandle.Notifier()
/// >>> notifier.add(event, value=1, token=7)
/// >>> event.signal()
/// 1
/// >>> readable, _, _ = select.select([notifier.fileno()], [], [], 5)
/// >>> notifier.next()
/// (7, None)
/// >>> notifier.remove(7)
/// False
/// >>> notifier.close()
#[pyclass(frozen, module = "crosshandle")]
pub(crate) struct Notifier(Mutex<Option<crosshandle::Notifier>>);

impl Notifier {
    fn notifier(&self) -> MutexGuard<'_, Option<crosshandle::Notifier>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn closed() -> PyErr {
    PyValueError::new_err("this notifier was closed")
}

#[pymethods]
impl Notifier {
    #[new]
    fn new() -> Result<Self> {
        Ok(Self(Mutex::new(Some(crosshandle::Notifier::new()?))))
    }

    /// Returns the file descriptor that the event loop watches. Do not read from it.
    fn fileno(&self) -> PyResult<i32> {
        let notifier = self.notifier();
        Ok(notifier.as_ref().ok_or_else(closed)?.as_raw_fd())
    }

    /// Starts a wait for signal `value` of an event. After the signal has completed or failed,
    /// `next` returns `token`.
    fn add(&self, event: &Event, value: u64, token: u64) -> PyResult<()> {
        let notifier = self.notifier();
        let added = notifier
            .as_ref()
            .ok_or_else(closed)?
            .add(&event.event, value, token);
        Ok(added.map_err(Failure::from)?)
    }

    /// Cancels the wait that was added with `token`. Returns `False` if no such wait is pending.
    fn remove(&self, token: u64) -> bool {
        let notifier = self.notifier();
        notifier
            .as_ref()
            .is_some_and(|notifier| notifier.remove(token))
    }

    /// Returns the token and the exception of one wait that has ended. The exception is `None` if
    /// the signal has completed. Returns `None` instead of a tuple if no further wait has ended.
    fn next<'py>(&self, py: Python<'py>) -> Option<(u64, Option<Bound<'py, PyAny>>)> {
        let notification = self.notifier().as_ref()?.next()?;
        let error = notification.result.err();
        let error = error.map(|error| {
            exception(py, &error)
                .into_value(py)
                .into_bound(py)
                .into_any()
        });
        Some((notification.token, error))
    }

    /// Cancels all waits, and closes the file descriptor.
    fn close(&self, py: Python<'_>) {
        let notifier = self.notifier().take();
        py.detach(|| drop(notifier));
    }
}
