//! The Python classes `Link`, `Listener`, `RemoteMemory` and `RemoteEvent`.

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

/// A wrapper for an object that a program can close. After the program has closed it, every use of
/// the object fails.
struct Closable<T> {
    object: Mutex<Option<T>>,
    what: &'static str,
    /// The id of the process that created the object. A forked child cannot use the object, because
    /// the link's threads exist only in the parent.
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
                "this {what} was created before the process was forked: create one in the child, or start the child \
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
            // A forked child leaks the object. Dropping it would wait for threads that exist only
            // in the parent.
            let object = self
                .object
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner);
            mem::forget(object.take());
        }
    }
}

/// Runs a call that waits for the remote host on a background thread. Ctrl-C and the timeout (in
/// seconds) end the wait, but not the call. If the call opens an object after that, the object is
/// closed at once.
fn aside<T: Send + 'static>(
    py: Python<'_>,
    timeout: Option<f64>,
    call: impl FnOnce() -> crosshandle_link::Result<T> + Send + 'static,
) -> PyResult<T> {
    let late = crosshandle_link::Error::TimedOut("waiting for the other host");
    let result = interrupt::aside(py, interrupt::timeout(timeout)?, call)?;
    Ok(result.unwrap_or(Err(late)).map_err(Failure::from)?)
}

/// A link to another host. It opens memory and events from handles that processes on that host have
/// created.
///
/// >>> from crosshandle import link
/// >>> context = crosshandle.default_context()
/// >>> memory, ready = context.allocate(64), context.event()
/// >>> token = link.new_token()
/// >>> with link.listen("127.0.0.1:0", token=token, data="tls") as listener:
/// ...     other = link.connect(listener.address, token=token, data="tls")
/// ...     listened = listener.accept(timeout=5)
/// >>> remote = other.open_memory(memory.handle())
/// >>> remote.write(b"hello")
/// >>> memory.read(5)
/// b'hello'
/// >>> remote_ready = other.open_event(ready.handle())
/// >>> version, parts = other.open_name("llama-70b")       # needs holder
/// >>> other.close()
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
    fn _connect(
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

    /// The network address of the remote host.
    #[getter]
    fn peer(&self) -> PyResult<String> {
        Ok(self.link.get()?.peer().to_owned())
    }

    /// The reason why the link has ended, as text, or `None` if the link still works.
    #[getter]
    fn ended(&self) -> PyResult<Option<String>> {
        Ok(self.link.get()?.ended().map(|error| error.to_string()))
    }

    /// Opens memory on the remote host. Waits at most `timeout` seconds for the remote host's
    /// reply, then raises `TimedOutError`. Ctrl-C interrupts the wait.
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

    /// Opens an event on the remote host. Waits at most `timeout` seconds for the remote host's
    /// reply, then raises `TimedOutError`. Ctrl-C interrupts the wait.
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

    /// Opens a named object that the holder on the remote host keeps. Returns the object's version,
    /// and the label and memory of each part. Waits at most `timeout` seconds for the reply, then
    /// raises `TimedOutError`. Ctrl-C interrupts the wait.
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

    /// Ends the link. On both hosts, operations that wait for the other host fail.
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

/// A listener that accepts links from other hosts.
///
/// >>> from crosshandle import link
/// >>> token = link.new_token()
/// >>> listener = link.listen("127.0.0.1:0", token=token, data="tls")
/// >>> other = link.connect(listener.address, token=token, data="tls")
/// >>> accepted = listener.accept(timeout=5)
/// >>> listener.close()
#[pyclass(frozen, module = "crosshandle.link")]
pub(crate) struct Listener {
    listener: Closable<std::sync::Arc<crosshandle_link::Listener>>,
    context: crosshandle::Context,
}

#[pymethods]
impl Listener {
    #[staticmethod]
    fn _bind(
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

    /// The network address at which the listener accepts links.
    #[getter]
    fn address(&self) -> PyResult<String> {
        Ok(self.listener.get()?.local_address().to_string())
    }

    /// Waits for the next link from another host, and returns it. Other Python threads run
    /// meanwhile. After `timeout` seconds, raises `TimedOutError`. Ctrl-C interrupts the wait.
    #[pyo3(signature = (timeout = None))]
    fn accept(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Link> {
        let listener = self.listener.get()?;
        let slices = Slices::new(interrupt::timeout(timeout)?);
        loop {
            let (slice, is_last) = slices.next(SLICE);
            match py.detach(|| listener.accept_timeout(slice)) {
                Err(error) if error.is_timeout() && !is_last => py.check_signals()?,
                Err(error) => return Err(Failure::from(error).into()),
                Ok(link) => return Ok(Link::new(link, self.context.clone())),
            }
        }
    }

    /// Stops listening. Links that were already accepted stay open.
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

/// Memory on another host. A program can read, write and copy it, but cannot map it.
///
/// >>> from crosshandle import link
/// >>> context = crosshandle.default_context()
/// >>> memory, ready, own = context.allocate(64), context.event(), context.allocate(64)
/// >>> token = link.new_token()
/// >>> listener = link.listen("127.0.0.1:0", token=token, data="tls")
/// >>> other = link.connect(listener.address, token=token, data="tls")
/// >>> accepted = listener.accept(timeout=5)
/// >>> remote = other.open_memory(memory.handle())
/// >>> remote.write(b"hello")
/// >>> number = remote.write_and_signal(b"again", other.open_event(ready.handle()), offset=8)
/// >>> filled = bytearray(5)
/// >>> remote.read_into(filled, offset=8)
/// >>> number, filled
/// (1, bytearray(b'again'))
/// >>> remote.copy_to(own)
/// >>> remote.copy_from(own)
/// >>> own.read(5)
/// b'hello'
/// >>> remote.close()
#[pyclass(frozen, module = "crosshandle.link")]
pub(crate) struct RemoteMemory {
    memory: Closable<crosshandle_link::RemoteMemory>,
    context: crosshandle::Context,
}

#[pymethods]
impl RemoteMemory {
    /// The size of the remote memory in bytes.
    #[getter]
    fn nbytes(&self) -> PyResult<usize> {
        Ok(self.memory.get()?.len())
    }

    /// Whether this process can only read the remote memory.
    #[getter]
    fn read_only(&self) -> PyResult<bool> {
        Ok(self.memory.get()?.access() == crosshandle::Access::ReadOnly)
    }

    /// Whether the remote host copies through a staging buffer, because the link cannot access the
    /// memory directly. An example is the memory of some GPUs.
    #[getter]
    fn staged(&self) -> PyResult<bool> {
        Ok(self.memory.get()?.is_staged())
    }

    /// Reads `nbytes` bytes from byte `offset` (default: up to the end). Waits at most `timeout`
    /// seconds for the bytes, then raises `TimedOutError`. Ctrl-C interrupts the wait.
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
                "{nbytes} bytes at byte {offset} are not inside the {} bytes of this memory",
                memory.len()
            )));
        }
        let mut bytes = arguments::room_for(nbytes)?;
        let bytes = aside(py, timeout, move || {
            memory.read(offset, &mut bytes).map(|()| bytes)
        })?;
        arguments::copied(py, &bytes)
    }

    /// Fills an array or another writable buffer with bytes from byte `offset`. Waits at most
    /// `timeout` seconds for the bytes, then raises `TimedOutError`. Ctrl-C interrupts the wait.
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

    /// Writes `data`, a contiguous buffer such as bytes or an array, at byte `offset`. Returns when
    /// the bytes have arrived. Raises `TimedOutError` after `timeout` seconds. After a timeout or
    /// Ctrl-C, the bytes may still arrive.
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

    /// Writes bytes like `write`, and then signals `event`. The event must have been opened through
    /// the same link. Returns the signal's number. A process that has seen the signal also sees the
    /// bytes.
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

    /// Copies local memory, which may be on a GPU, to the remote memory.
    ///
    /// The copy starts after the events in `after`, and signals the event `signal` when it is done.
    /// With `queue`, the copy is a command on that queue, and this method returns at once. Without
    /// `queue`, this method returns when the copy is done. Ctrl-C and `timeout` (in seconds) end
    /// the wait but not the copy, which may still access both memories.
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

    /// Copies the remote memory to local memory, which may be on a GPU. The other arguments have
    /// the same meaning as for `copy_from`.
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

    /// Closes the remote memory. Operations that are in progress continue.
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

    /// Submits a command to `queue`. Without `queue`, submits it to a new queue and waits at most
    /// `timeout` seconds until it is done.
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

/// An event on another host. To wait for the event, wait for its `mirror`.
///
/// >>> from crosshandle import link
/// >>> ready = crosshandle.event()
/// >>> token = link.new_token()
/// >>> listener = link.listen("127.0.0.1:0", token=token, data="tls")
/// >>> other = link.connect(listener.address, token=token, data="tls")
/// >>> accepted = listener.accept(timeout=5)
/// >>> remote = other.open_event(ready.handle())
/// >>> remote.signal()
/// 1
/// >>> remote.mirror.wait_value(1, timeout=5)
/// >>> ready.submitted
/// 1
/// >>> remote.close()
#[pyclass(frozen, module = "crosshandle.link")]
pub(crate) struct RemoteEvent(Closable<crosshandle_link::RemoteEvent>);

#[pymethods]
impl RemoteEvent {
    /// A local event that follows the remote event. Its signals have the same numbers. Wait for it
    /// like for any other event, but do not signal it.
    #[getter]
    fn mirror(&self) -> PyResult<Event> {
        Ok(Event::new(self.0.get()?.mirror().clone(), None))
    }

    /// Signals the remote event, and returns the signal's number. Waits at most `timeout` seconds
    /// for the reply, then raises `TimedOutError`. After a timeout or Ctrl-C, the remote host may
    /// still signal the event.
    #[pyo3(signature = (timeout = None))]
    fn signal(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let event = self.0.get()?;
        aside(py, timeout, move || event.signal())
    }

    /// Closes the remote event. Pending waits for the event's mirror fail.
    fn close(&self, py: Python<'_>) {
        let event = self.0.take();
        py.detach(|| drop(event));
    }
}
