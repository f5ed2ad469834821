//! The Python class `Context`.

use crate::array::{Array, Dtype, Layout};
use crate::device::{self, Device};
use crate::error::Result;
use crate::event::{DeviceEvent, Event};
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

/// A process's connection to one device. It creates memory, events and queues, and opens memory and
/// events from other processes.
///
/// Memory and events keep their context alive. Any thread may use a context. With `pooling=False`,
/// each allocation gets its own segment, so a process that opens one allocation cannot access
/// another. `overcommit=True` allows host allocations larger than the machine's free memory, for
/// programs that use only a part of an allocation. `socket_dir` is the directory in which processes
/// find each other. `CROSSHANDLE_SOCKET_DIR` can change its default. `exchange_timeout` is the
/// maximum number of seconds that an open call waits for the exporter. After that time the call
/// raises `TimedOutError`.
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
/// A program can also create physical memory, and map it at addresses that it has reserved:
///
/// >>> context.trim()
/// >>> size = context.device.granularity
/// >>> physical, addresses = context.physical_memory(size), context.reserve(size)
///
/// Kernels wait for events, and can be told to stop:
///
/// >>> done = context.event(single_signaller=True)
/// >>> for_kernels = context.device_event(done)
/// >>> context.abort_kernels()
/// >>> context.clear_abort()
#[pyclass(frozen, module = "crosshandle")]
pub(crate) struct Context(
    pub(crate) crosshandle::Context,
    pub(crate) Wholes,
    /// Placeholder memory for empty arrays that come from other processes and libraries.
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

    /// Allocates `nbytes` bytes of uninitialized memory that other processes can open.
    ///
    /// `align` is the alignment in bytes, a power of two. With `populate`, the kernel provides all
    /// pages of host memory now. A lack of memory then raises an exception here, instead of killing
    /// the process on a later write. With `overcommit`, a host allocation may be larger than the
    /// machine's free memory. Raises `OutOfMemoryError` if there is too little memory.
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

    /// Opens another process's memory without copying it.
    ///
    /// `handle` is a `MemoryHandle`, its bytes or its text. For a read-only handle, pass
    /// `writable=False`. `timeout` is the maximum number of seconds to wait for the exporter. If
    /// the context's `exchange_timeout` is shorter, it applies instead. After the timeout, this
    /// method raises `TimedOutError`. Ctrl-C interrupts the wait.
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

    /// Creates an event. With `low_power`, a waiting thread in this process sleeps at once instead
    /// of spinning first. With `isolated`, the event's counters are in memory that no other event
    /// uses. With `single_signaller`, only kernels and streams of this process on the context's
    /// device signal the event, which they count by themselves.
    #[pyo3(signature = (*, name = None, low_power = false, isolated = false, single_signaller = false))]
    pub(crate) fn event(
        &self,
        name: Option<&str>,
        low_power: bool,
        isolated: bool,
        single_signaller: bool,
    ) -> Result<Event> {
        let options = EventOptions::new()
            .low_power(low_power)
            .isolated(isolated)
            .single_signaller(single_signaller);
        let event = self.0.create_event_with(options)?;
        if let Some(name) = name {
            event.set_name(name);
        }
        Ok(Event::new(event, None))
    }

    /// Returns an event for kernels on the context's device, which wait for it. They signal it if
    /// it was created in this context with `single_signaller`.
    fn device_event(&self, event: &Event) -> Result<DeviceEvent> {
        Ok(DeviceEvent::new(self.0.device_event(&event.event)?))
    }

    /// Tells kernels on the context's device to stop: their waits return `aborted`.
    fn abort_kernels(&self) -> Result<()> {
        Ok(self.0.abort_device_code()?)
    }

    /// Takes back `abort_kernels`, for kernels that are launched later.
    fn clear_abort(&self) -> Result<()> {
        Ok(self.0.clear_device_abort()?)
    }

    /// Opens another process's event. `handle` is an `EventHandle`, its bytes or its text.
    /// `low_power` has the same meaning as for `event`, and `timeout` as for `open_memory`.
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

    /// Creates `nbytes` bytes of physical memory. `nbytes` must be a multiple of the device's
    /// granularity, which is 2 MiB on GPUs and one page on the host.
    fn physical_memory(&self, py: Python<'_>, nbytes: usize) -> Result<PhysicalMemory> {
        let memory = detached(py, || {
            crosshandle::virtual_memory::PhysicalMemory::new(&self.0, nbytes)
        })?;
        Ok(PhysicalMemory::new(memory, None))
    }

    /// Reserves a range of `nbytes` addresses in this process. Physical memory can be mapped into
    /// it.
    fn reserve(&self, py: Python<'_>, nbytes: usize) -> Result<VirtualRange> {
        Ok(VirtualRange::new(detached(py, || {
            crosshandle::virtual_memory::VirtualRange::reserve(&self.0, nbytes)
        })?))
    }

    /// Opens the object that a handle refers to: memory, physical memory or an event. Memory is
    /// opened read-only if the handle is read-only or if `writable` is False. `timeout` has the
    /// same meaning as for `open_memory`.
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
            AnyHandle::Channel(_) => {
                let error = "this is the handle of a channel: open it with \
                             crosshandle.Channel.open(handle)";
                Err(crate::error::Failure::from(crosshandle::Error::invalid(error)).into())
            }
        }
    }

    /// Creates a queue that runs commands in the order of submission. With `in_order=False`, a
    /// command runs as soon as the events that it waits for have been signalled.
    ///
    /// With `stream`, the queue submits its commands to that existing stream. `stream` comes from
    /// torch, CuPy, numba or cuda.core, has a `__cuda_stream__` method, or is the driver's stream
    /// handle as an integer. Work submitted through the queue and work submitted directly to the
    /// stream run in the order of submission.
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

    /// Creates a queue for an existing driver stream. `number` is the driver's stream handle.
    /// `stream` is the Python object that owns the driver stream. The queue keeps this object
    /// alive.
    fn _adopt_stream(
        &self,
        py: Python<'_>,
        number: usize,
        stream: Option<Py<PyAny>>,
    ) -> Result<Queue> {
        let native = NativeObject::new(self.0.device().info().backend, number);
        // SAFETY: the returned `Queue` keeps the owner of the driver stream alive, and drops it
        // after the native queue. A program that passes only a number promises to keep the stream
        // alive.
        let adopt = || unsafe { crosshandle::Queue::adopt(&self.0, native, Ownership::Borrowed) };
        Ok(Queue::new(detached(py, adopt)?, stream))
    }

    /// Creates an array with uninitialized elements in new memory. `shape` is a number or a tuple
    /// of numbers. `dtype` is a NumPy dtype or a name (default: `float64`).
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

    /// Frees the unused memory that this context keeps for later allocations. Idle host memory is
    /// freed automatically within about a second.
    fn trim(&self, py: Python<'_>) {
        py.detach(|| self.0.trim());
    }

    /// Returns a handle to the memory that contains `address`. The memory must belong to this
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
    /// Returns placeholder memory for arrays without elements, because such arrays need an address
    /// too.
    pub(crate) fn nothing(&self, py: Python<'_>) -> PyResult<Arc<SharedMemory>> {
        if let Some(memory) = self.2.get() {
            return Ok(Arc::clone(memory));
        }
        let memory = detached(py, || self.0.allocate(1))?;
        let memory = Memory::allocated(memory, self.0.clone()).shared()?;
        Ok(Arc::clone(self.2.get_or_init(|| memory)))
    }

    /// Creates an array with the given element type and shape in new memory, without gaps. Does not
    /// initialize the elements.
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
        // An array without elements needs an address too, so allocate at least one byte.
        let memory = detached(py, || self.0.allocate(bytes.max(1)))?;
        let memory = Memory::allocated(memory, self.0.clone());
        Array::new(memory.shared()?, layout)
    }
}

/// Returns this process's default context for a device. `None` means the host.
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

/// Returns the Python module `crosshandle._libraries.streams`, which supports other libraries'
/// streams.
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
