//! The Python class `Queue`, whose commands run on one device.

use crate::array::arguments::{Data, Items};
use crate::error::Result;
use crate::event::Event;
use crate::interrupt;
use crate::memory::Memory;
use crosshandle::Command;
use pyo3::prelude::*;

/// A queue that runs copies, fills and signals on a device. Submitting a command does not wait for
/// it.
///
/// >>> context = crosshandle.Context("host")
/// >>> source, destination = context.allocate(4096), context.allocate(4096)
/// >>> filled, copied = context.event(), context.event()
/// >>> queue = context.queue()
/// >>> queue.fill(source, b"ab", signal=filled)
/// >>> queue.copy(source, destination, after=[filled], signal=copied)
/// >>> copied.wait(timeout=5)
/// >>> destination.read(4)
/// b'abab'
/// >>> queue.signal(copied)
/// 2
/// >>> queue.wait(copied)
/// >>> queue.finish(timeout=5)
#[pyclass(frozen, module = "crosshandle")]
pub(crate) struct Queue {
    pub(crate) queue: crosshandle::Queue,
    /// The Python object that owns the queue's driver stream. It is dropped after the queue.
    _stream: Option<Py<PyAny>>,
}

impl Queue {
    pub(crate) fn new(queue: crosshandle::Queue, stream: Option<Py<PyAny>>) -> Self {
        Self {
            queue,
            _stream: stream,
        }
    }
}

#[pymethods]
impl Queue {
    /// Submits a copy of `nbytes` bytes (default: the whole source). The copy starts after the
    /// latest signals of the events in `after`, and signals the event `signal` when it is done.
    /// This method does not wait for the copy.
    #[pyo3(signature = (source, destination, *, nbytes = None, source_offset = 0, destination_offset = 0, after = None, signal = None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "most have defaults and are given by name"
    )]
    fn copy(
        &self,
        source: &Memory,
        destination: &Memory,
        nbytes: Option<usize>,
        source_offset: usize,
        destination_offset: usize,
        after: Option<Items<PyRef<'_, Event>>>,
        signal: Option<&Event>,
    ) -> PyResult<()> {
        let (source, destination) = (source.shared()?, destination.shared()?);
        let all = source.memory.len().saturating_sub(source_offset);
        let nbytes = nbytes.unwrap_or(all);
        let submit = || {
            let source = source
                .memory
                .range(source_offset..source_offset.saturating_add(nbytes))?;
            let end = destination_offset.saturating_add(nbytes);
            let destination = destination.memory.range(destination_offset..end)?;
            self.submit(
                Command::copy(source, destination)?,
                after.as_ref().map_or(&[], |after| &after.0),
                signal,
            )
        };
        let submitted: Result<()> = submit().map_err(Into::into);
        Ok(submitted?)
    }

    /// Submits a command that fills all of the memory with a repeated pattern. `after` and `signal`
    /// have the same meaning as for `copy`. This method does not wait for the command.
    #[pyo3(signature = (destination, pattern, *, after = None, signal = None))]
    fn fill(
        &self,
        destination: &Memory,
        pattern: Data,
        after: Option<Items<PyRef<'_, Event>>>,
        signal: Option<&Event>,
    ) -> PyResult<()> {
        let destination = destination.shared()?;
        let submit = || {
            let command = Command::fill(destination.memory.all(), &pattern)?;
            self.submit(
                command,
                after.as_ref().map_or(&[], |after| &after.0),
                signal,
            )
        };
        let submitted: Result<()> = submit().map_err(Into::into);
        Ok(submitted?)
    }

    /// Submits a command that signals the event after all earlier commands. Returns the signal's
    /// number, or 0 for an event with a single signaller, which the device counts. This method does
    /// not wait for the command.
    pub(crate) fn signal(&self, event: &Event) -> Result<u64> {
        if event.event.has_single_signaller() {
            self.queue.signal(&event.event)?;
            return Ok(0);
        }
        Ok(self.queue.signal_numbered(&event.event)?)
    }

    /// Makes all later commands wait for signal `value` of the event. By default, `value` is the
    /// latest signal, or the first signal if none was submitted yet.
    #[pyo3(signature = (event, value = None))]
    pub(crate) fn wait(&self, event: &Event, value: Option<u64>) -> Result<()> {
        match value {
            None => self.queue.wait(&event.event)?,
            Some(value) => {
                let barrier = Command::barrier().after_value(&event.event, value);
                self.queue.submit(barrier)?;
            }
        }
        Ok(())
    }

    /// The driver's handle of the queue as an integer, such as a `CUstream`, or `None` for a queue
    /// without a driver.
    #[getter]
    fn native(&self) -> Option<usize> {
        self.queue
            .native()
            .map(crosshandle::native::NativeObject::raw)
    }

    /// Waits until all submitted commands are done, for at most `timeout` seconds. Other Python
    /// threads run meanwhile. Raises `TimedOutError` after the timeout. Ctrl-C interrupts the wait,
    /// but not the commands.
    #[pyo3(signature = (timeout = None))]
    pub(crate) fn finish(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let limit = interrupt::timeout(timeout)?;
        interrupt::wait(py, limit, |slice| self.queue.finish_timeout(slice))
    }

    /// Whether all submitted commands are done.
    #[getter]
    fn idle(&self) -> bool {
        self.queue.is_idle()
    }

    fn __repr__(&self) -> String {
        let state = if self.queue.is_idle() { "idle" } else { "busy" };
        format!("<crosshandle.Queue, {state}>")
    }
}

impl Queue {
    /// Submits a command that may call a Rust function. Releases the interpreter's lock while it
    /// submits.
    pub(crate) fn submit_call(
        &self,
        py: Python<'_>,
        command: Command,
        after: &[PyRef<'_, Event>],
        signal: Option<&Event>,
    ) -> crosshandle::Result<()> {
        let command = with_events(command, after, signal);
        py.detach(|| self.queue.submit(command))
    }

    fn submit(
        &self,
        command: Command,
        after: &[PyRef<'_, Event>],
        signal: Option<&Event>,
    ) -> crosshandle::Result<()> {
        self.queue.submit(with_events(command, after, signal))
    }
}

fn with_events(command: Command, after: &[PyRef<'_, Event>], signal: Option<&Event>) -> Command {
    let command = after
        .iter()
        .fold(command, |command, event| command.after(&event.event));
    match signal {
        Some(event) => command.signal(&event.event),
        None => command,
    }
}
