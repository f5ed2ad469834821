//! Events.

mod notifier;

pub(crate) use notifier::Notifier;

use crate::context::{default_context, streams};
use crate::error::{Failure, Result};
use crate::handle::EventHandle;
use crate::interrupt;
use crate::memory::pending;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyList;
use std::sync::atomic::{AtomicBool, Ordering};

/// A counter of signals that processes share.
///
/// Each signal gets the next number when it is submitted. `wait()` is for the latest one, or for the first one
/// if there is none. `wait_value(n)` is for signal n, which may not have been submitted yet. `ready()` looks without
/// waiting. A wait raises `PeerDiedError` if the process that was to signal has ended. Give each wait a timeout: a
/// process that never opened the event cannot be missed. Any thread may use an event.
#[pyclass(frozen, module = "crosshandle", weakref)]
pub(crate) struct Event {
    pub(crate) event: crosshandle::Event,
    /// The handle by which it was opened, if it was.
    handle: Option<crosshandle::EventHandle>,
}

/// Whether the interpreter is about to end.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Leaves the events open that other processes made and this one has not closed, until the process has ended. So their
/// makers learn that it ended with the events in use.
pub(crate) fn leave_events_open() {
    IS_ENDING.store(true, Ordering::Relaxed);
}

impl Event {
    pub(crate) fn new(event: crosshandle::Event, handle: Option<crosshandle::EventHandle>) -> Self {
        Self { event, handle }
    }

    /// Returns whether this process made the event.
    pub(crate) fn is_own(&self) -> bool {
        self.handle.is_none()
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if IS_ENDING.load(Ordering::Relaxed) && !self.is_own() {
            std::mem::forget(self.event.clone());
        }
    }
}

#[pymethods]
impl Event {
    /// Makes an event in the default context of a device (default: the host).
    #[new]
    #[pyo3(signature = (name = None, *, device = None, low_power = false, isolated = false))]
    fn make(
        py: Python<'_>,
        name: Option<&str>,
        device: Option<&Bound<'_, PyAny>>,
        low_power: bool,
        isolated: bool,
    ) -> PyResult<Self> {
        let context = default_context(py, device)?;
        Ok(context.get().event(name, low_power, isolated)?)
    }

    /// Signals from this process, and returns the signal's number. With `stream`, of torch, CuPy, numba or cuda.core or
    /// by its number, the stream signals once it has done what was submitted to it so far.
    #[pyo3(signature = (stream = None))]
    fn signal(slf: &Bound<'_, Self>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
        let event = &slf.get().event;
        let Some(stream) = stream else {
            return Ok(event.signal().map_err(Failure::from)?);
        };
        let number = streams(slf.py())?.call_method1("signal", (slf, stream))?;
        number.extract()
    }

    /// Has a stream wait for signal `value` (default: the latest, or the first one if there is none) before it does
    /// what is submitted to it later. This call does not wait. If the signal's process dies, the stream continues.
    #[pyo3(signature = (stream, value = None))]
    fn wait_on(
        slf: &Bound<'_, Self>,
        stream: &Bound<'_, PyAny>,
        value: Option<u64>,
    ) -> PyResult<()> {
        streams(slf.py())?.call_method1("wait", (slf, stream, value))?;
        Ok(())
    }

    /// Signals all numbers up to `value` at once.
    fn signal_value(&self, value: u64) -> Result<()> {
        Ok(self.event.signal_value(value)?)
    }

    /// Waits for the signal that was submitted last, or for the first one if there is none, at most `timeout`
    /// seconds. Other threads run meanwhile; Ctrl-C ends the wait. Raises `TimedOutError`, `PeerDiedError` or
    /// `CommandFailedError`.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.wait_value(py, self.event.latest_or_first(), timeout)
    }

    /// Waits for signal `value`, submitted or not, as `wait` does.
    #[pyo3(signature = (value, timeout = None))]
    pub(crate) fn wait_value(
        &self,
        py: Python<'_>,
        value: u64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let limit = interrupt::timeout(timeout)?;
        // What has completed needs no other thread to run.
        let done: Result<bool> = self.event.try_wait_value(value).map_err(Into::into);
        if done? {
            return Ok(());
        }
        interrupt::wait(py, limit, |slice| {
            self.event.wait_value_timeout(value, slice)
        })
    }

    /// Returns whether signal `value` (default: the latest) has completed; `False` if it was not submitted.
    /// Raises as `wait` does.
    #[pyo3(signature = (value = None))]
    fn ready(&self, value: Option<u64>) -> Result<bool> {
        self.done(value)
    }

    /// The same as `ready`.
    #[pyo3(signature = (value = None))]
    fn done(&self, value: Option<u64>) -> Result<bool> {
        Ok(match value {
            Some(value) => self.event.try_wait_value(value)?,
            None => self.event.try_wait()?,
        })
    }

    /// Returns whether signal `value` has completed, or does so in the next microseconds: for event loops that have
    /// nothing else to wait for.
    fn _look(&self, py: Python<'_>, value: u64) -> Result<bool> {
        interrupt::look(py, &self.event, value)
    }

    /// Returns an awaitable that ends when signal `value`, submitted or not, has completed: in asyncio and
    /// in trio. By default it is for the latest signal, or for the first one if there is none. Cancelling it has no
    /// effect on the event.
    #[pyo3(signature = (value = None))]
    fn reached<'py>(slf: &Bound<'py, Self>, value: Option<u64>) -> PyResult<Bound<'py, PyAny>> {
        static REACHED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let value = value.unwrap_or_else(|| slf.get().event.latest_or_first());
        let reached = REACHED.import(slf.py(), "crosshandle._awaiting", "reached")?;
        reached.call1((slf, value))
    }

    /// The number of the signal that was submitted last; 0 if there was none.
    #[getter]
    fn submitted(&self) -> u64 {
        self.event.submitted()
    }

    /// The greatest number such that this signal and all before it are finished.
    #[getter]
    fn completed(&self) -> u64 {
        self.event.completed()
    }

    /// The name that `crosshandle ps` and errors show; `None` if it has none.
    #[getter]
    fn get_name(&self) -> Option<String> {
        self.event.name()
    }

    #[setter]
    fn set_name(&self, name: &str) {
        self.event.set_name(name);
    }

    /// Returns the handle to send to other processes.
    fn handle(&self) -> Result<EventHandle> {
        Ok(EventHandle(match self.handle {
            Some(handle) => handle,
            None => self.event.handle()?,
        }))
    }

    /// Waits until the latest signals of all events have completed, at most `timeout` seconds. An event without a
    /// signal is waited for until its first one.
    #[staticmethod]
    #[pyo3(signature = (events, timeout = None))]
    fn wait_all(py: Python<'_>, events: &Bound<'_, PyList>, timeout: Option<f64>) -> PyResult<()> {
        let events = clones(events)?;
        let values = Vec::from_iter(events.iter().map(|event| (event, event.latest_or_first())));
        let limit = interrupt::timeout(timeout)?;
        interrupt::wait(py, limit, |slice| {
            crosshandle::Event::wait_all_value(&values, Some(slice))
        })
    }

    /// Waits until the latest signal of one of the events has completed, at most `timeout` seconds, and
    /// returns that event's index. An event without a signal is waited for until its first one.
    #[staticmethod]
    #[pyo3(signature = (events, timeout = None))]
    fn wait_any(
        py: Python<'_>,
        events: &Bound<'_, PyList>,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        let events = clones(events)?;
        let values = Vec::from_iter(events.iter().map(|event| (event, event.latest_or_first())));
        let limit = interrupt::timeout(timeout)?;
        interrupt::wait(py, limit, |slice| {
            crosshandle::Event::wait_any_value(&values, Some(slice))
        })
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        pending::reduced(slf, "open", &slf.get().handle()?.__bytes__(slf.py()))
    }

    fn __repr__(&self) -> String {
        let name = self
            .event
            .name()
            .map_or(String::new(), |name| format!(" {name:?}"));
        let (submitted, completed) = (self.event.submitted(), self.event.completed());
        format!("<crosshandle.Event{name}, {submitted} submitted, {completed} completed>")
    }
}

fn clones(events: &Bound<'_, PyList>) -> PyResult<Vec<crosshandle::Event>> {
    let events = events.iter().map(|event| {
        let event = event.cast_into::<Event>()?;
        PyResult::Ok(event.get().event.clone())
    });
    events.collect()
}
