//! The Python class `Event`.

mod device;
mod notifier;

pub(crate) use device::{DeviceEvent, device_header};
pub(crate) use notifier::Notifier;

use crate::context::default_context;
use crate::error::{Failure, Result};
use crate::handle::EventHandle;
use crate::interrupt;
use crate::memory::pending;
use crate::streams;
use crosshandle::event::EventSet;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyList;
use std::sync::atomic::{AtomicBool, Ordering};

/// A counter of signals, which several processes can signal and wait for.
///
/// Each signal gets the next number when a program submits it. `wait()` waits for the latest
/// signal, or for the first signal if none was submitted yet. `wait_value(n)` waits for signal `n`,
/// which may be submitted later. `ready()` checks without waiting. A wait raises `PeerDiedError` if
/// the process that should signal has ended. Always pass a timeout: the death of a process that
/// never opened the event cannot be detected. Any thread may use an event.
///
/// >>> ready = crosshandle.event("ready")
/// >>> ready.signal()
/// 1
/// >>> ready.ready()
/// True
/// >>> ready.wait(timeout=5)
/// >>> ready.done(1), ready.done(2)
/// (True, False)
/// >>> ready.signal_value(5)
/// >>> ready.wait_value(5, timeout=5)
/// >>> ready.submitted, ready.completed
/// (5, 5)
/// >>> same = crosshandle.open(bytes(ready.handle()))      # as another process does
/// >>> crosshandle.Event.wait_all([ready, same], timeout=5)
/// >>> crosshandle.Event.wait_any([ready, same], timeout=5)
/// 0
/// >>> async def main():
/// ...     await ready.reached(5)
/// >>> asyncio.run(main())
/// >>> ready.wait_on(torch.cuda.current_stream())          # needs gpu, torch
#[pyclass(frozen, module = "crosshandle", weakref)]
pub(crate) struct Event {
    pub(crate) event: crosshandle::Event,
    /// The handle with which this process opened the event, or `None` if this process created it.
    handle: Option<crosshandle::EventHandle>,
}

/// Whether the interpreter is about to exit.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// From this call on, dropping an event of another process leaves it open until this process has
/// ended. The event's creator can then detect that this process died while it used the event.
pub(crate) fn leave_events_open() {
    IS_ENDING.store(true, Ordering::Relaxed);
}

impl Event {
    pub(crate) fn new(event: crosshandle::Event, handle: Option<crosshandle::EventHandle>) -> Self {
        Self { event, handle }
    }

    /// Returns whether this process created the event.
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
    /// Creates an event in the default context for `device` (default: the host).
    #[new]
    #[pyo3(signature = (name = None, *, device = None, low_power = false, isolated = false, single_signaller = false))]
    fn make(
        py: Python<'_>,
        name: Option<&str>,
        device: Option<&Bound<'_, PyAny>>,
        low_power: bool,
        isolated: bool,
        single_signaller: bool,
    ) -> PyResult<Self> {
        let context = default_context(py, device)?;
        Ok(context
            .get()
            .event(name, low_power, isolated, single_signaller)?)
    }

    /// Signals the event and returns the signal's number.
    ///
    /// With `stream`, the stream completes the signal after the work that it already contains, and
    /// this method does not wait. `stream` is a stream from torch, CuPy, numba or cuda.core, or the
    /// driver's stream handle as an integer.
    ///
    /// A signal of an event with a single signaller needs a stream. The device counts such signals,
    /// so the result is 0. While the stream is captured in a graph, each run of the graph signals
    /// the next number.
    #[pyo3(signature = (stream = None))]
    fn signal(slf: &Bound<'_, Self>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
        let event = &slf.get().event;
        let Some(stream) = stream else {
            return Ok(event.signal().map_err(Failure::from)?);
        };
        streams::signal(slf, stream)
    }

    /// Makes a stream wait for signal `value` before it runs work that is submitted later.
    ///
    /// This method itself does not wait. By default, `value` is the latest signal, or the first
    /// signal if none was submitted yet. If the process that should signal dies, the stream
    /// continues without the signal. While the stream is captured in a graph, each run of the graph
    /// waits for the next signal, and `value` must be None.
    #[pyo3(signature = (stream, value = None))]
    fn wait_on(
        slf: &Bound<'_, Self>,
        stream: &Bound<'_, PyAny>,
        value: Option<u64>,
    ) -> PyResult<()> {
        streams::wait(slf, stream, value)
    }

    /// Completes all signals up to number `value` at once.
    fn signal_value(&self, value: u64) -> Result<()> {
        Ok(self.event.signal_value(value)?)
    }

    /// Waits until the latest signal has completed. If no signal was submitted yet, waits for the
    /// first one.
    ///
    /// Other Python threads run meanwhile. Ctrl-C interrupts the wait. Raises `TimedOutError` after
    /// `timeout` seconds, `PeerDiedError` if the process that should signal has ended, or
    /// `CommandFailedError` if the command that should signal has failed.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.wait_value(py, self.event.latest_or_first(), timeout)
    }

    /// Waits at most `timeout` seconds until signal `value` has completed. The signal may be
    /// submitted later. Raises the same exceptions as `wait`.
    #[pyo3(signature = (value, timeout = None))]
    pub(crate) fn wait_value(
        &self,
        py: Python<'_>,
        value: u64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let limit = interrupt::timeout(timeout)?;
        // If the signal has already completed, return without releasing the interpreter's lock.
        let done: Result<bool> = self.event.try_wait_value(value).map_err(Into::into);
        if done? {
            return Ok(());
        }
        interrupt::wait(py, limit, |slice| {
            self.event.wait_value_timeout(value, slice)
        })
    }

    /// Returns whether signal `value` has completed (default: the latest signal). Returns `False`
    /// if the signal was not submitted yet. Raises the same exceptions as `wait`.
    #[pyo3(signature = (value = None))]
    fn ready(&self, value: Option<u64>) -> Result<bool> {
        self.done(value)
    }

    /// Returns the same result as `ready`.
    #[pyo3(signature = (value = None))]
    fn done(&self, value: Option<u64>) -> Result<bool> {
        Ok(match value {
            Some(value) => self.event.try_wait_value(value)?,
            None => self.event.try_wait()?,
        })
    }

    /// Spins for a few microseconds, and returns whether signal `value` has completed. An event
    /// loop calls this method if its tasks await no other signal.
    fn _look(&self, py: Python<'_>, value: u64) -> Result<bool> {
        interrupt::look(py, &self.event, value)
    }

    /// Returns an awaitable for asyncio or trio, which completes when signal `value` has completed.
    ///
    /// The signal may be submitted later. By default, `value` is the latest signal, or the first
    /// signal if none was submitted yet. Cancelling the awaitable has no effect on the event.
    #[pyo3(signature = (value = None))]
    fn reached<'py>(slf: &Bound<'py, Self>, value: Option<u64>) -> PyResult<Bound<'py, PyAny>> {
        static REACHED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let value = value.unwrap_or_else(|| slf.get().event.latest_or_first());
        let reached = REACHED.import(slf.py(), "crosshandle._awaiting", "reached")?;
        reached.call1((slf, value))
    }

    /// The number of the latest submitted signal, or 0 if there is none.
    #[getter]
    fn submitted(&self) -> u64 {
        self.event.submitted()
    }

    /// The number of the last signal before the first pending one. That signal and all earlier ones
    /// have completed or failed.
    #[getter]
    fn completed(&self) -> u64 {
        self.event.completed()
    }

    /// The event's name for `crosshandle ps` and error messages, or `None`.
    #[getter]
    fn get_name(&self) -> Option<String> {
        self.event.name()
    }

    #[setter]
    fn set_name(&self, name: &str) {
        self.event.set_name(name);
    }

    /// Returns a handle, with which another process can open the event.
    fn handle(&self) -> Result<EventHandle> {
        Ok(EventHandle(match self.handle {
            Some(handle) => handle,
            None => self.event.handle()?,
        }))
    }

    /// Waits until the latest signal of each event has completed. If an event has no signal yet,
    /// waits for its first one. Raises the same exceptions as `wait`, including `TimedOutError`
    /// after `timeout` seconds in total.
    #[staticmethod]
    #[pyo3(signature = (events, timeout = None))]
    fn wait_all(py: Python<'_>, events: &Bound<'_, PyList>, timeout: Option<f64>) -> PyResult<()> {
        let events = clones(events)?;
        let set = EventSet::latest(&events);
        let limit = interrupt::timeout(timeout)?;
        interrupt::wait(py, limit, |slice| set.wait_all_timeout(slice))
    }

    /// Waits until the latest signal of at least one event has completed, and returns the index of
    /// that event. If an event has no signal yet, its first signal counts. Raises the same
    /// exceptions as `wait`, including `TimedOutError` after `timeout` seconds.
    #[staticmethod]
    #[pyo3(signature = (events, timeout = None))]
    fn wait_any(
        py: Python<'_>,
        events: &Bound<'_, PyList>,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        let events = clones(events)?;
        let set = EventSet::latest(&events);
        let limit = interrupt::timeout(timeout)?;
        interrupt::wait(py, limit, |slice| set.wait_any_timeout(slice))
    }

    fn __copy__(&self) -> PyResult<Self> {
        Err(PyTypeError::new_err(
            "an event cannot be copied: open its handle to get a second object for the same event",
        ))
    }

    fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.__copy__()
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
