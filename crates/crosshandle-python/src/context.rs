//! The Python class `Context`.

use crate::array::{Array, Dtype, Layout};
use crate::device::{self, Device};
use crate::error::Result;
use crate::event::Event;
use crate::foreign::Wholes;
use crate::handle::{EventHandle, MemoryHandle, any};
use crate::interrupt::{self, detached, detached_for};
use crate::memory::physical::{PhysicalMemory, VirtualRange};
use crate::memory::{Memory, SharedMemory};
use crate::queue::Queue;
use crosshandle::handle::AnyHandle;
use crosshandle::{
    AllocationOptions, ContextOptions, EventOptions, QueueOrder,
    native::{NativeObject, Ownership},
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// A process's connection to one device. It creates objects that the process shares, and opens
/// objects of other processes.
///
/// Memory and events belong to a context and keep it alive. Any thread may use a context. With
/// `pooling=False`, each allocation has its own segment, so a process that opens one allocation
/// cannot access another. `overcommit=True` allows allocations of host memory that are larger than
/// the machine's free memory, for programs that use only a part of an allocation. `socket_dir` is
/// the directory in which processes find each other. Its default comes from the environment, see
/// the README. `exchange_timeout` is the maximum number of seconds that opening waits for an
/// exporter.
///
/// >>> context = crosshandle.Context("host", name="trainer")
/// >>> memory, ready = context.allocate(4096), context.event(name="ready")
/// >>> array = context.empty((16, 16), "float64")
/// >>> queue = context.queue()
///
/// Another process opens the objects from their handles:
///
/// >>> same = context.open_memory(memory.handle())
/// >>> also = context.open_event(ready.handle())
/// >>> either = context.open(memory.handle())
/// >>> context.memory_handle_at(memory.address) == memory.handle()
/// True
///
/// Physical memory is mapped into reserved addresses:
///
/// >>> context.trim()
/// >>> size = context.device.granularity
/// >>> physical, addresses = context.physical_memory(size), context.reserve(size)
#[pyclass(frozen, module = "crosshandle")]
pub(crate) struct Context(
    pub(crate) crosshandle::Context,
    pub(crate) Wholes,
    /// Memory that all empty arrays from other processes and libraries share.
    OnceLock<Arc<SharedMemory>>,
);

#[pymethods]
impl Context {
    #[new]
    #[pyo3(signature = (device = None, *, name = None, pooling = true, overcommit = false, socket_dir = None, exchange_timeout = None))]
    fn new(
        py: Python<'_>,
        device: Option<&Bound<'_, PyAny>>,
        name: Option<String>,
        pooling: bool,
        overcommit: bool,
        socket_dir: Option<PathBuf>,
        exchange_timeout: Option<f64>,
    ) -> PyResult<Self> {
        let device = device::find(device)?;
        let mut options = ContextOptions::new()
            .pooling(pooling)
            .overcommit(overcommit);
        if let Some(name) = name {
            options = options.name(name);
        }
        if let Some(directory) = socket_dir {
            options = options.socket_dir(directory);
        }
        if let Some(timeout) = interrupt::seconds(exchange_timeout)? {
            options = options.exchange_timeout(timeout);
        }
        let create = || crosshandle::Context::with_options(&device, options);
        Ok(Self(
            detached(py, create)?,
            Wholes::default(),
            OnceLock::new(),
        ))
    }

    /// The device that the context is on.
    #[getter]
    fn device(&self) -> Device {
        Device(self.0.device().clone())
    }

    /// Allocates `nbytes` bytes of memory that can be shared. The memory is not initialized.
    ///
    /// `align` is a power of two. With `populate`, all pages of host memory are allocated now, so
    /// that a lack of memory raises an exception here instead of killing the process later. With
    /// `overcommit`, host memory may be larger than the machine's free memory. Raises
    /// `OutOfMemoryError`.
    #[pyo3(signature = (nbytes, *, name = None, align = None, populate = false, overcommit = false))]
    fn allocate(
        &self,
        py: Python<'_>,
        nbytes: usize,
        name: Option<&str>,
        align: Option<usize>,
        populate: bool,
        overcommit: bool,
    ) -> Result<Memory> {
        let mut options = AllocationOptions::new(nbytes)
            .populate(populate)
            .overcommit(overcommit);
        if let Some(align) = align {
            options = options.align(align);
        }
        let memory = detached(py, || self.0.allocate_with(options))?;
        if let Some(name) = name {
            memory.set_name(name);
        }
        Ok(Memory::allocated(memory, self.0.clone()))
    }

    /// Opens memory that another process has exported, without a copy.
    ///
    /// `handle` is a `MemoryHandle`, its bytes or its text. For a read-only handle, pass
    /// `writable=False`. `timeout` is the maximum number of seconds to wait for the exporter. The
    /// context's `exchange_timeout` applies if it is shorter.
    #[pyo3(signature = (handle, *, writable = true, timeout = None))]
    fn open_memory(
        &self,
        py: Python<'_>,
        handle: &Bound<'_, PyAny>,
        writable: bool,
        timeout: Option<f64>,
    ) -> PyResult<Memory> {
        let handle = MemoryHandle::new(handle)?.0;
        let timeout = interrupt::timeout(timeout)?;
        Ok(Memory::open(py, &self.0, handle, writable, timeout)?)
    }

    /// Creates an event. With `low_power`, waiting threads sleep at once instead of spinning first.
    /// With `isolated`, the event's counters do not share memory with another event.
    #[pyo3(signature = (*, name = None, low_power = false, isolated = false))]
    pub(crate) fn event(
        &self,
        name: Option<&str>,
        low_power: bool,
        isolated: bool,
    ) -> Result<Event> {
        let options = EventOptions::new().low_power(low_power).isolated(isolated);
        let event = self.0.create_event_with(options)?;
        if let Some(name) = name {
            event.set_name(name);
        }
        Ok(Event::new(event, None))
    }

    /// Opens an event of another process. `handle` is an `EventHandle`, its bytes or its text.
    /// `timeout` is as for `open_memory`.
    #[pyo3(signature = (handle, *, low_power = false, timeout = None))]
    fn open_event(
        &self,
        py: Python<'_>,
        handle: &Bound<'_, PyAny>,
        low_power: bool,
        timeout: Option<f64>,
    ) -> PyResult<Event> {
        let timeout = interrupt::timeout(timeout)?;
        let handle = EventHandle::new(handle)?.0;
        let options = EventOptions::new().low_power(low_power);
        let event = detached_for(py, timeout, || self.0.open_event_with(&handle, options))?;
        Ok(Event::new(event, Some(handle)))
    }

    /// Creates `nbytes` bytes of physical memory. The size is a multiple of the device's
    /// granularity, which is 2 MiB on GPUs and a page on the host.
    fn physical_memory(&self, py: Python<'_>, nbytes: usize) -> Result<PhysicalMemory> {
        let memory = detached(py, || {
            crosshandle::virtual_memory::PhysicalMemory::new(&self.0, nbytes)
        })?;
        Ok(PhysicalMemory::new(memory, None))
    }

    /// Reserves `nbytes` bytes of addresses, into which physical memory can be mapped.
    fn reserve(&self, py: Python<'_>, nbytes: usize) -> Result<VirtualRange> {
        Ok(VirtualRange::new(detached(py, || {
            crosshandle::virtual_memory::VirtualRange::reserve(&self.0, nbytes)
        })?))
    }

    /// Opens the object that a handle refers to: memory, physical memory or an event. Memory opens
    /// read-only if the handle only allows reading or if `writable` is False. `timeout` is as for
    /// `open_memory`.
    #[pyo3(signature = (handle, *, writable = true, timeout = None))]
    fn open(
        &self,
        py: Python<'_>,
        handle: &Bound<'_, PyAny>,
        writable: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let timeout = interrupt::timeout(timeout)?;
        match any(handle)? {
            AnyHandle::Memory(handle) => {
                let writable = writable && !handle.is_read_only();
                let memory = Memory::open(py, &self.0, handle, writable, timeout)?;
                Ok(Py::new(py, memory)?.into_any())
            }
            AnyHandle::Event(handle) => {
                let event = detached_for(py, timeout, || self.0.open_event(&handle))?;
                Ok(Py::new(py, Event::new(event, Some(handle)))?.into_any())
            }
            AnyHandle::PhysicalMemory(handle) => {
                let memory =
                    detached_for(py, timeout, || match !writable || handle.is_read_only() {
                        true => crosshandle::virtual_memory::PhysicalMemory::open_read_only(
                            &self.0, &handle,
                        ),
                        false => {
                            crosshandle::virtual_memory::PhysicalMemory::open(&self.0, &handle)
                        }
                    })?;
                Ok(Py::new(py, PhysicalMemory::new(memory, Some(handle)))?.into_any())
            }
        }
    }

    /// Creates a queue that runs commands in order. With `in_order=False`, a command runs as soon
    /// as the events that it waits for have been signalled.
    ///
    /// With `stream`, the queue is that stream. `stream` is a stream of torch, CuPy, numba or
    /// cuda.core, any object with `__cuda_stream__`, or the driver's number of a stream. Work that
    /// is submitted to the queue or to the stream runs in the order of the calls.
    #[pyo3(signature = (stream = None, *, in_order = true))]
    fn queue<'py>(
        slf: &Bound<'py, Self>,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        in_order: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(stream) = stream {
            return streams(py)?.call_method1("queue", (stream, slf));
        }
        let order = match in_order {
            true => QueueOrder::InOrder,
            false => QueueOrder::OutOfOrder,
        };
        let context = &slf.get().0;
        let queue = detached(py, || context.create_queue_with(order))?;
        Ok(Bound::new(py, Queue::new(queue, None))?.into_any())
    }

    /// Adopts a stream of the driver by its number. The queue keeps `stream` alive, which is the
    /// object that owns the driver's stream.
    fn _adopt_stream(
        &self,
        py: Python<'_>,
        number: usize,
        stream: Option<Py<PyAny>>,
    ) -> Result<Queue> {
        let native = NativeObject::new(self.0.device().info().backend, number);
        // SAFETY: the queue keeps the stream's object alive, and is dropped before that object. A
        // program that passes only a number promises to keep the stream.
        let adopt = || unsafe { crosshandle::Queue::adopt(&self.0, native, Ownership::Borrowed) };
        Ok(Queue::new(detached(py, adopt)?, stream))
    }

    /// Creates an array in new memory, without initializing its elements. `shape` is a number or a
    /// tuple. `dtype` is a NumPy dtype or a name (default: `float64`).
    #[pyo3(signature = (shape, dtype = None))]
    fn empty(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Array> {
        let dtype = dtype.map_or(Ok(Dtype::DOUBLE), Dtype::of)?;
        self.empty_of(py, dtype, Layout::shape_of(shape)?)
    }

    /// Frees the unused memory that this context keeps for reuse. Idle host memory is returned
    /// automatically within about a second.
    fn trim(&self, py: Python<'_>) {
        py.detach(|| self.0.trim());
    }

    /// Returns the handle of the memory that contains an address. The memory must belong to this
    /// context.
    fn memory_handle_at(&self, address: usize) -> Result<MemoryHandle> {
        let pointer = std::ptr::without_provenance(address);
        Ok(MemoryHandle(self.0.memory_handle(pointer)?))
    }

    fn __repr__(&self) -> String {
        format!("<crosshandle.Context on {}>", self.0.device())
    }
}

impl Context {
    /// Returns memory for arrays without elements, because these arrays need an address too.
    pub(crate) fn nothing(&self, py: Python<'_>) -> PyResult<Arc<SharedMemory>> {
        if let Some(memory) = self.2.get() {
            return Ok(Arc::clone(memory));
        }
        let memory = detached(py, || self.0.allocate(1))?;
        let memory = Memory::allocated(memory, self.0.clone()).shared()?;
        Ok(Arc::clone(self.2.get_or_init(|| memory)))
    }

    /// Creates an array with this layout in new memory.
    pub(crate) fn empty_of(
        &self,
        py: Python<'_>,
        dtype: Dtype,
        shape: Vec<usize>,
    ) -> PyResult<Array> {
        let sizes = shape.iter().copied().chain([dtype.bytes()]);
        let bytes = sizes.reduce(|product, size| product.saturating_mul(size));
        let bytes = bytes.filter(|bytes| *bytes <= isize::MAX as usize);
        let layout = Layout::contiguous(dtype, shape, 0);
        let (Some(bytes), Some(layout)) = (bytes, layout) else {
            return Err(PyValueError::new_err(
                "the array is larger than the address space",
            ));
        };
        // An array without elements needs an address too.
        let memory = detached(py, || self.0.allocate(bytes.max(1)))?;
        let memory = Memory::allocated(memory, self.0.clone());
        Array::new(memory.shared()?, layout)
    }
}

/// Returns this process's default context of a device. `None` stands for the host.
pub(crate) fn default_context<'py>(
    py: Python<'py>,
    device: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, Context>> {
    let sharing = py.import("crosshandle._sharing")?;
    let context = match device {
        None => sharing.call_method0("default_context")?,
        Some(device) => sharing.call_method1("default_context", (device,))?,
    };
    Ok(context.cast_into()?)
}

/// Returns the module that handles streams of other libraries.
pub(crate) fn streams(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static MODULE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || {
        PyResult::Ok(
            py.import("crosshandle._libraries.streams")?
                .into_any()
                .unbind(),
        )
    })?;
    Ok(module.bind(py))
}
