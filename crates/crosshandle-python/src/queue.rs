//! Queues.

use crate::array::arguments::{Data, Items};
use crate::error::Result;
use crate::event::Event;
use crate::interrupt;
use crate::memory::Memory;
use crosshandle::Command;
use pyo3::prelude::*;

/// A queue of commands of a device.
#[pyclass(frozen, module = "crosshandle")]
pub(crate) struct Queue {
    queue: crosshandle::Queue,
    /// The object of the stream that the queue is, dropped after it.
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
    /// Submits a copy of `nbytes` bytes (default: all of the source). It waits for the events in `after` and
    /// signals `signal` when it is done. Submitting does not wait.
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

    /// Submits a fill of memory with a pattern, over and over.
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

    /// Has the event signalled when all earlier commands are done. Returns the signal's number.
    fn signal(&self, event: &Event) -> Result<u64> {
        Ok(self.queue.signal_numbered(&event.event)?)
    }

    /// Has all later commands wait for signal `value` of the event (default: the latest, or the first one if there is
    /// none).
    #[pyo3(signature = (event, value = None))]
    fn wait(&self, event: &Event, value: Option<u64>) -> Result<()> {
        match value {
            None => self.queue.wait(&event.event)?,
            Some(value) => {
                let barrier = Command::barrier().after_value(&event.event, value);
                self.queue.submit(barrier)?;
            }
        }
        Ok(())
    }

    /// The driver's own number of the queue, such as a `CUstream`'s; `None` where no driver is behind it.
    #[getter]
    fn native(&self) -> Option<usize> {
        self.queue.native().map(crosshandle::NativeObject::raw)
    }

    /// Waits until all commands are done, at most `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    pub(crate) fn finish(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let limit = interrupt::timeout(timeout)?;
        interrupt::wait(py, limit, |slice| self.queue.finish_timeout(slice))
    }

    /// Whether no command is under way.
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
    /// Submits a command that calls Rust. Other threads of Python's run meanwhile.
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
