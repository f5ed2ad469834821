//! Awaited signals for event loops.

use crate::error::{Result, exception};
use crate::event::Event;
use pyo3::prelude::*;
use std::os::fd::AsRawFd;

/// Awaits any number of signals for an event loop: its descriptor can be read from when one of them has
/// completed or failed. `Event.reached` uses one for each loop.
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
#[pyclass(frozen, module = "crosshandle")]
pub(crate) struct Notifier(crosshandle::Notifier);

#[pymethods]
impl Notifier {
    #[new]
    fn new() -> Result<Self> {
        Ok(Self(crosshandle::Notifier::new()?))
    }

    /// The descriptor to watch; nothing is to be read from it.
    fn fileno(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Awaits signal `value` of an event. `next` returns `token` with its result.
    fn add(&self, event: &Event, value: u64, token: u64) -> Result<()> {
        Ok(self.0.add(&event.event, value, token)?)
    }

    /// Cancels what is awaited with a token. Returns whether anything was.
    fn remove(&self, token: u64) -> bool {
        self.0.remove(token)
    }

    /// Returns the next token with `None`, or with the exception that the wait would raise; `None` if
    /// nothing has come.
    fn next<'py>(&self, py: Python<'py>) -> Option<(u64, Option<Bound<'py, PyAny>>)> {
        let notification = self.0.next()?;
        let error = notification.result.err();
        let error = error.map(|error| {
            exception(py, &error)
                .into_value(py)
                .into_bound(py)
                .into_any()
        });
        Some((notification.token, error))
    }
}
