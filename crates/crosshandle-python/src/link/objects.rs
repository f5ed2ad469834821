//! The objects of links.

use super::Options;
use super::error::{Failure, Result};
use crate::array::arguments::{self, Data, Items, bytes_of};
use crate::context::Context;
use crate::event::Event;
use crate::handle::{EventHandle, MemoryHandle};
use crate::interrupt::{self, SLICE, Slices};
use crate::memory::Memory;
use crate::queue::Queue;
use crosshandle::Command;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySlice};
use std::sync::{Mutex, PoisonError};
use std::{mem, process};

/// What `close` takes.
struct Closable<T> {
    object: Mutex<Option<T>>,
    what: &'static str,
    /// The process that made it. A forked child lacks the threads of the link.
    maker: u32,
}

impl<T: Clone> Closable<T> {
    fn new(object: T, what: &'static str) -> Self {
        Self {
            object: Mutex::new(Some(object)),
            what,
            maker: process::id(),
        }
    }

    fn get(&self) -> PyResult<T> {
        let what = self.what;
        if self.is_inherited() {
            let error = crosshandle::Error::Unsupported(format!(
                "this {what} was made before the process was forked: make one in the child, or start the child \
                 with multiprocessing's 'spawn' or 'forkserver'"
            ));
            return Err(crate::error::Failure::from(error).into());
        }
        let object = self.object.lock().unwrap_or_else(PoisonError::into_inner);
        object
            .clone()
            .ok_or_else(|| PyValueError::new_err(format!("this {what} was closed")))
    }
}

impl<T> Closable<T> {
    fn is_inherited(&self) -> bool {
        self.maker != process::id()
    }

    fn take(&self) -> Option<T> {
        if self.is_inherited() {
            return None;
        }
        let mut object = self.object.lock().unwrap_or_else(PoisonError::into_inner);
        object.take()
    }
}

impl<T> Drop for Closable<T> {
    fn drop(&mut self) {
        if self.is_inherited() {
            // Its drop would wait for threads of the parent.
            let object = self
                .object
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner);
            mem::forget(object.take());
        }
    }
}

/// Makes a call that waits for the other host. If Ctrl-C or the timeout comes first, it goes on by itself, and what it
/// opens is closed again.
fn aside<T: Send + 'static>(
    py: Python<'_>,
    timeout: Option<f64>,
    call: impl FnOnce() -> crosshandle_link::Result<T> + Send + 'static,
) -> PyResult<T> {
    let late = crosshandle_link::Error::TimedOut("waiting for the other host");
    let result = interrupt::aside(py, interrupt::timeout(timeout)?, call)?;
    Ok(result.unwrap_or(Err(late)).map_err(Failure::from)?)
}

/// A link to another host: opens handles that were made there.
#[pyclass(frozen, module = "crosshandle.link")]
pub(crate) struct Link {
    link: Closable<crosshandle_link::Link>,
    context: crosshandle::Context,
}

impl Link {
    fn new(link: crosshandle_link::Link, context: crosshandle::Context) -> Self {
        Self {
            link: Closable::new(link, "link"),
            context,
        }
    }
}

#[pymethods]
impl Link {
    #[staticmethod]
    #[pyo3(signature = (address, context, options, timeout = None))]
    fn connect(
        py: Python<'_>,
        address: String,
        context: &Context,
        options: Options,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let options = options.into_link()?;
        let context = context.0.clone();
        let own = context.clone();
        let link = aside(py, timeout, move || {
            crosshandle_link::Link::connect(&*address, &own, &options)
        })?;
        Ok(Self::new(link, context))
    }

    /// The other side's address.
    #[getter]
    fn peer(&self) -> PyResult<String> {
        Ok(self.link.get()?.peer().to_owned())
    }

    /// Why the link has ended; `None` while it has not.
    #[getter]
    fn ended(&self) -> PyResult<Option<String>> {
        Ok(self.link.get()?.ended().map(|error| error.to_string()))
    }

    /// Opens memory of the other host. Waits for its answer, at most `timeout` seconds.
    #[pyo3(signature = (handle, *, writable = true, timeout = None))]
    fn open_memory(
        &self,
        py: Python<'_>,
        handle: &Bound<'_, PyAny>,
        writable: bool,
        timeout: Option<f64>,
    ) -> PyResult<RemoteMemory> {
        let (link, handle) = (self.link.get()?, MemoryHandle::new(handle)?.0);
        let memory = aside(py, timeout, move || match writable {
            true => link.open_memory(&handle),
            false => link.open_memory_read_only(&handle),
        })?;
        Ok(self.remote_memory(memory))
    }

    /// Opens an event of the other host. Waits for its answer, at most `timeout` seconds.
    #[pyo3(signature = (handle, *, timeout = None))]
    fn open_event(
        &self,
        py: Python<'_>,
        handle: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<RemoteEvent> {
        let (link, handle) = (self.link.get()?, EventHandle::new(handle)?.0);
        let event = aside(py, timeout, move || link.open_event(&handle))?;
        Ok(RemoteEvent(Closable::new(event, "event")))
    }

    /// Opens what has a name at the other host's holder: its version, and its parts by what they are for. Waits for the
    /// answer, at most `timeout` seconds.
    #[pyo3(signature = (name, *, timeout = None))]
    fn open_name(
        &self,
        py: Python<'_>,
        name: String,
        timeout: Option<f64>,
    ) -> PyResult<(u64, Vec<(String, RemoteMemory)>)> {
        let link = self.link.get()?;
        let found = aside(py, timeout, move || link.open_name(&name))?;
        let parts = found.parts.into_iter();
        let parts = parts.map(|part| (part.role, self.remote_memory(part.memory)));
        Ok((found.version, parts.collect()))
    }

    /// Ends the link: whatever waits for the other side, on both sides, fails.
    fn close(&self, py: Python<'_>) {
        if let Some(link) = self.link.take() {
            py.detach(|| link.close());
        }
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        match self.link.get() {
            Ok(link) => format!("<crosshandle.link.Link to {}>", link.peer()),
            Err(_) => "<crosshandle.link.Link, closed>".into(),
        }
    }
}

impl Link {
    fn remote_memory(&self, memory: crosshandle_link::RemoteMemory) -> RemoteMemory {
        RemoteMemory {
            memory: Closable::new(memory, "memory"),
            context: self.context.clone(),
        }
    }
}

/// Listens for other hosts that want to link.
#[pyclass(frozen, module = "crosshandle.link")]
pub(crate) struct Listener {
    listener: Closable<std::sync::Arc<crosshandle_link::Listener>>,
    context: crosshandle::Context,
}

#[pymethods]
impl Listener {
    #[staticmethod]
    fn bind(
        py: Python<'_>,
        address: String,
        context: &Context,
        options: Options,
    ) -> PyResult<Self> {
        let options = options.into_link()?;
        let context = context.0.clone();
        let own = context.clone();
        let listener = aside(py, None, move || {
            crosshandle_link::Listener::bind(&*address, &own, &options)
        })?;
        Ok(Self {
            listener: Closable::new(listener.into(), "listener"),
            context,
        })
    }

    /// The address at which it listens.
    #[getter]
    fn address(&self) -> PyResult<String> {
        Ok(self.listener.get()?.local_address().to_string())
    }

    /// Waits for the next host that links, at most `timeout` seconds. Other threads run meanwhile; Ctrl-C
    /// ends the wait.
    #[pyo3(signature = (timeout = None))]
    fn accept(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Link> {
        let listener = self.listener.get()?;
        let slices = Slices::new(interrupt::timeout(timeout)?);
        loop {
            let (slice, is_last) = slices.next(SLICE);
            match py.detach(|| listener.accept(Some(slice))) {
                Err(error) if error.is_timeout() && !is_last => py.check_signals()?,
                Err(error) => return Err(Failure::from(error).into()),
                Ok(link) => return Ok(Link::new(link, self.context.clone())),
            }
        }
    }

    /// Ends the listening. Links that were accepted go on.
    fn close(&self, py: Python<'_>) {
        let listener = self.listener.take();
        py.detach(|| drop(listener));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }
}

/// Memory of the other host, which can be read and written but not mapped.
#[pyclass(frozen, module = "crosshandle.link")]
pub(crate) struct RemoteMemory {
    memory: Closable<crosshandle_link::RemoteMemory>,
    context: crosshandle::Context,
}

#[pymethods]
impl RemoteMemory {
    /// The size in bytes.
    #[getter]
    fn nbytes(&self) -> PyResult<usize> {
        Ok(self.memory.get()?.len())
    }

    /// Whether it can be read only.
    #[getter]
    fn read_only(&self) -> PyResult<bool> {
        Ok(self.memory.get()?.access() == crosshandle::Access::ReadOnly)
    }

    /// Whether the other host cannot access it, as it cannot a GPU's: it is copied there once more.
    #[getter]
    fn staged(&self) -> PyResult<bool> {
        Ok(self.memory.get()?.is_staged())
    }

    /// Copies bytes here: `nbytes` (default: all that follow) from byte `offset` on. Waits for them, at most `timeout`
    /// seconds.
    #[pyo3(signature = (nbytes = None, *, offset = 0, timeout = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        nbytes: Option<usize>,
        offset: usize,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let memory = self.memory.get()?;
        let rest = memory.len().saturating_sub(offset);
        let nbytes = nbytes.unwrap_or(rest);
        if nbytes > rest {
            return Err(PyValueError::new_err(format!(
                "{nbytes} bytes from byte {offset} on are not inside of the {} bytes of this memory",
                memory.len()
            )));
        }
        let mut bytes = arguments::room_for(nbytes)?;
        let bytes = aside(py, timeout, move || {
            memory.read(offset, &mut bytes).map(|()| bytes)
        })?;
        arguments::copied(py, &bytes)
    }

    /// Fills an array or another writable buffer with bytes from byte `offset` on. Waits for them, at most `timeout`
    /// seconds.
    #[pyo3(signature = (into, *, offset = 0, timeout = None))]
    fn read_into(
        &self,
        py: Python<'_>,
        into: &Bound<'_, PyAny>,
        offset: usize,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let view = bytes_of(into)?;
        let bytes = self.read(py, Some(view.len()?), offset, timeout)?;
        view.set_item(PySlice::full(py), bytes)
    }

    /// Copies bytes there, from byte `offset` on: bytes, an array or another contiguous buffer. Returns when they
    /// are there. If `timeout` seconds pass or Ctrl-C comes before that, they may arrive all the same.
    #[pyo3(signature = (data, *, offset = 0, timeout = None))]
    fn write(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        offset: usize,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (memory, data) = (self.memory.get()?, Data::of_buffer(data)?);
        aside(py, timeout, move || memory.write(offset, &data))
    }

    /// Copies bytes there as `write` does, then signals an event of the same link, and returns the signal's number.
    /// Whoever sees the signal sees the bytes.
    #[pyo3(signature = (data, event, *, offset = 0, timeout = None))]
    fn write_and_signal(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        event: &RemoteEvent,
        offset: usize,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let (memory, data, event) = (self.memory.get()?, Data::of_buffer(data)?, event.0.get()?);
        aside(py, timeout, move || {
            memory.write_and_signal(offset, &data, &event)?.wait()
        })
    }

    /// Copies memory of this host there, maybe a GPU's. It waits for the events in `after` and signals `signal` when it
    /// is done. In a `queue` it is a command like others, and this returns at once; without one it returns when the copy
    /// is done. Ctrl-C and `timeout` seconds end that wait and not the copy, which may still read or write both memories.
    #[pyo3(signature = (source, *, offset = 0, source_offset = 0, nbytes = None, queue = None, after = None, signal = None, timeout = None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "most have defaults and are given by name"
    )]
    fn copy_from(
        &self,
        py: Python<'_>,
        source: &Memory,
        offset: usize,
        source_offset: usize,
        nbytes: Option<usize>,
        queue: Option<&Queue>,
        after: Option<Items<PyRef<'_, Event>>>,
        signal: Option<&Event>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let command = self.copy(source, false, offset, source_offset, nbytes)?;
        let after = after.as_ref().map_or(&[][..], |after| &after.0);
        self.submit(py, command, queue, (after, signal), timeout)
    }

    /// Copies to memory of this host, maybe a GPU's. As `copy_from`.
    #[pyo3(signature = (destination, *, offset = 0, destination_offset = 0, nbytes = None, queue = None, after = None, signal = None, timeout = None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "most have defaults and are given by name"
    )]
    fn copy_to(
        &self,
        py: Python<'_>,
        destination: &Memory,
        offset: usize,
        destination_offset: usize,
        nbytes: Option<usize>,
        queue: Option<&Queue>,
        after: Option<Items<PyRef<'_, Event>>>,
        signal: Option<&Event>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let command = self.copy(destination, true, offset, destination_offset, nbytes)?;
        let after = after.as_ref().map_or(&[][..], |after| &after.0);
        self.submit(py, command, queue, (after, signal), timeout)
    }

    /// Closes it. What is under way goes on.
    fn close(&self, py: Python<'_>) {
        let memory = self.memory.take();
        py.detach(|| drop(memory));
    }
}

impl RemoteMemory {
    fn copy(
        &self,
        local: &Memory,
        is_read: bool,
        offset: usize,
        local_offset: usize,
        nbytes: Option<usize>,
    ) -> PyResult<Command> {
        let (memory, local) = (self.memory.get()?, local.shared()?);
        let rest = memory.len().saturating_sub(offset);
        let nbytes = nbytes.unwrap_or(rest);
        let end = |start: usize| start.saturating_add(nbytes);
        let make = || {
            let own = local.memory.range(local_offset..end(local_offset))?;
            let there = memory.range(offset..end(offset))?;
            match is_read {
                true => there.copy_to(own),
                false => there.copy_from(own),
            }
        };
        Ok(make().map_err(Failure::from)?)
    }

    /// Submits to a queue of the caller's, or to one of its own, for which it waits.
    fn submit(
        &self,
        py: Python<'_>,
        command: Command,
        queue: Option<&Queue>,
        (after, signal): (&[PyRef<'_, Event>], Option<&Event>),
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let submit = |queue: &Queue| -> Result<()> {
            let submitted = queue.submit_call(py, command, after, signal);
            Ok(submitted.map_err(crosshandle_link::Error::from)?)
        };
        match queue {
            Some(queue) => Ok(submit(queue)?),
            None => {
                let own = self
                    .context
                    .create_queue()
                    .map_err(crosshandle_link::Error::from)
                    .map_err(Failure::from)?;
                let own = Queue::new(own, None);
                submit(&own)?;
                own.finish(py, timeout)
            }
        }
    }
}

/// An event of the other host. Its `mirror` is waited for as any event is.
#[pyclass(frozen, module = "crosshandle.link")]
pub(crate) struct RemoteEvent(Closable<crosshandle_link::RemoteEvent>);

#[pymethods]
impl RemoteEvent {
    /// The event of this host that goes on as the other host's does, with the same numbers: to be waited for
    /// in every way, and not to be signalled.
    #[getter]
    fn mirror(&self) -> PyResult<Event> {
        Ok(Event::new(self.0.get()?.mirror().clone(), None))
    }

    /// Signals the other host's event, and returns the signal's number after a round trip, for which this waits at most
    /// `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn signal(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let event = self.0.get()?;
        aside(py, timeout, move || event.signal())
    }

    /// Closes it: waits for the mirror that are not over fail.
    fn close(&self, py: Python<'_>) {
        let event = self.0.take();
        py.detach(|| drop(event));
    }
}
