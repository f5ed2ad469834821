//! Awaited signals for event loops.

use crate::error::{Failure, Result, exception};
use crate::event::Event;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Awaits any number of signals for an event loop: its descriptor can be read from when one of them has
/// completed or failed. `Event.reached` uses one for each loop.
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

    /// The descriptor to watch; nothing is to be read from it.
    fn fileno(&self) -> PyResult<i32> {
        let notifier = self.notifier();
        Ok(notifier.as_ref().ok_or_else(closed)?.as_raw_fd())
    }

    /// Awaits signal `value` of an event. `next` returns `token` with its result.
    fn add(&self, event: &Event, value: u64, token: u64) -> PyResult<()> {
        let notifier = self.notifier();
        let added = notifier
            .as_ref()
            .ok_or_else(closed)?
            .add(&event.event, value, token);
        Ok(added.map_err(Failure::from)?)
    }

    /// Cancels what is awaited with a token. Returns whether anything was.
    fn remove(&self, token: u64) -> bool {
        let notifier = self.notifier();
        notifier
            .as_ref()
            .is_some_and(|notifier| notifier.remove(token))
    }

    /// Returns the next token with `None`, or with the exception that the wait would raise; `None` if
    /// nothing has come.
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

    /// Cancels all that is awaited, and closes the descriptor.
    fn close(&self, py: Python<'_>) {
        let notifier = self.notifier().take();
        py.detach(|| drop(notifier));
    }
}
