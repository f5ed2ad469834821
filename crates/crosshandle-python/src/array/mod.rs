//! The Python class `Array`, a typed view of memory, and the array protocols that it supports.

pub(crate) mod arguments;
mod buffer;
pub(crate) mod dlpack;
mod dtype;
pub(crate) mod exchange;
mod layout;
mod libraries;
mod ready;

pub(crate) use crosshandle::handle::bundle::MAX_DIMENSIONS;
pub(crate) use dtype::{Dtype, dtype_of, numpy_dtype};
pub(crate) use layout::Layout;
pub(crate) use ready::{Arrivals, Ready, Signal};

use crate::context::streams;
use crate::error::Failure;
use crate::event::Event;
use crate::memory::{Memory, SharedMemory, pending};
use crosshandle::Error;
use crosshandle::device::dlpack::CUDA;
use dtype::Kind;
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView, PyTuple};
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A view of memory as an array, without a copy. It keeps the memory open.
///
/// Array libraries access it through the buffer protocol, `__array_interface__` (NumPy), DLPack
/// (torch, JAX, CuPy, NumPy) and `__cuda_array_interface__` (CuPy, numba, torch). The methods
/// `numpy()`, `torch()`, `jax()` and `cupy()` are shortcuts for these protocols. `dpctl()` and
/// `dpnp()` open the memory a second time, as SYCL's unified shared memory (USM). The results of
/// all these methods keep the memory open too.
///
/// >>> array = crosshandle.zeros((2, 3), "float32")
/// >>> array.wait(timeout=5)               # for the event that was passed to `share`, if any
/// >>> array.numpy()[0, :] = 1
/// >>> array.tolist()
/// [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
/// >>> tensor = array.torch()                                   # needs torch
/// >>> matrix = array.jax()                                     # needs jax
/// >>> on_a_gpu = crosshandle.zeros(8, device="cuda").cupy()    # needs gpu, cupy
/// >>> usm, same = array.dpctl(), array.dpnp()                  # needs sycl
#[pyclass(frozen, module = "crosshandle", weakref)]
pub(crate) struct Array {
    pub(crate) memory: Arc<SharedMemory>,
    pub(crate) layout: Layout,
    pub(crate) read_only: bool,
    /// The signals after which the bytes are ready.
    pub(crate) ready: Ready,
    /// The shape and the strides in DLPack's unit, elements. Borrowed DLPack tensors point to these
    /// numbers.
    numbers: OnceLock<Box<[i64]>>,
    /// The time and the error of the last failed wait for a buffer view.
    buffer_wait: Mutex<Option<(Instant, PyErr)>>,
}

/// After a wait for a buffer view has failed, `__array_interface__` of the same array fails with
/// the same error at once for this long.
///
/// If this time is too short, NumPy waits a second time on a slow machine. If it is too long, a
/// program that retries gets the old error.
const SAME_WAIT: Duration = Duration::from_millis(50);

/// Fills in a buffer view of an array for an object that has the array. The view belongs to the
/// array.
///
/// # Safety
/// The caller must ensure that `view` is null or points to a `Py_buffer` that can be written.
pub(crate) unsafe fn fill_view(
    array: PyResult<Bound<'_, Array>>,
    view: *mut pyo3::ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let array = match array {
        Ok(array) => array,
        Err(error) => {
            if !view.is_null() {
                // SAFETY: `view` is not null, so the caller guarantees that it can be written. The
                // field `obj` must be null after an error.
                unsafe { (*view).obj = std::ptr::null_mut() };
            }
            return Err(error);
        }
    };
    array.get().wait_for_buffer(array.py())?;
    // SAFETY: the caller guarantees it.
    unsafe { buffer::fill(array, view, flags) }
}

impl Array {
    pub(crate) fn new(memory: Arc<SharedMemory>, layout: Layout) -> PyResult<Self> {
        Self::of(memory, layout, false)
    }

    /// Creates an array, which is read-only if `read_only` is true or the memory is read-only.
    /// Fails if the layout does not fit into the memory.
    pub(crate) fn of(memory: Arc<SharedMemory>, layout: Layout, read_only: bool) -> PyResult<Self> {
        layout.check(memory.memory.len())?;
        let read_only = read_only || memory.is_read_only();
        let ready = memory.arrivals.of(&layout.bytes());
        Ok(Self {
            memory,
            layout,
            read_only,
            ready,
            numbers: OnceLock::new(),
            buffer_wait: Mutex::new(None),
        })
    }

    /// Replaces the signals that users of the array wait for.
    pub(crate) fn after(mut self, ready: Ready) -> Self {
        self.ready = ready;
        self
    }

    /// Waits on the host until the bytes are ready. `timeout` is in seconds.
    pub(crate) fn wait_ready(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.ready.wait(py, timeout)
    }

    /// Waits like [`wait_ready`](Self::wait_ready) before a buffer view is created, and stores the
    /// error if the wait fails.
    ///
    /// After a failed wait, NumPy drops the error and tries `__array_interface__`, which would wait
    /// again. With the stored error, `__array_interface__` fails at once.
    fn wait_for_buffer(&self, py: Python<'_>) -> PyResult<()> {
        let waited = self.wait_ready(py, None);
        if let Err(error) = &waited {
            let ended = (Instant::now(), error.clone_ref(py));
            *self.buffer_wait() = Some(ended);
        }
        waited
    }

    fn buffer_wait(&self) -> MutexGuard<'_, Option<(Instant, PyErr)>> {
        self.buffer_wait
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether all signals have completed, so that no wait is needed. This is the usual
    /// case: the signals complete long before another process uses the array.
    fn is_ready(&self) -> bool {
        self.ready.pending().next().is_none()
    }

    fn is_cuda(&self) -> bool {
        self.memory.context.device().info().dlpack_type == CUDA
    }

    fn address(&self) -> usize {
        self.memory.address() + self.layout.offset
    }

    /// Returns whether the host can access the memory.
    fn is_on_host(&self) -> bool {
        self.memory.memory.bytes().is_ok()
    }

    /// Returns an array over the same bytes, with an element type that every library supports.
    fn as_raw(&self) -> PyResult<Self> {
        let layout = Layout {
            dtype: self.layout.dtype.raw(),
            ..self.layout.clone()
        };
        self.with_layout(layout)
    }

    /// Returns an array with another layout in the same memory. Its users wait for the same
    /// signals.
    fn with_layout(&self, layout: Layout) -> PyResult<Self> {
        let array = Self::of(Arc::clone(&self.memory), layout, self.read_only)?;
        Ok(array.after(self.ready.clone()))
    }
}

#[pymethods]
impl Array {
    /// The number of elements in each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.layout.shape)
    }

    /// The distance in bytes between neighbouring elements, for each dimension.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.layout.strides)
    }

    /// The name of the element type, such as `float32` or `<M8[ns]`. For records, the NumPy dtype
    /// instead of a name.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let dtype = &self.layout.dtype;
        if dtype.numbered().is_none() && dtype.typestr().is_none() {
            return dtype.numpy(py);
        }
        Ok(dtype.to_string().into_pyobject(py)?.into_any())
    }

    /// The size of an element in bytes.
    #[getter]
    fn itemsize(&self) -> usize {
        self.layout.dtype.bytes()
    }

    /// The transposed array: a view of the same memory with the dimensions in reverse order.
    #[getter]
    #[pyo3(name = "T")]
    fn transposed(&self) -> PyResult<Self> {
        let mut layout = self.layout.clone();
        layout.shape.reverse();
        layout.strides.reverse();
        self.with_layout(layout)
    }

    /// The number of dimensions.
    #[getter]
    fn ndim(&self) -> usize {
        self.layout.shape.len()
    }

    /// The number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.layout.elements()
    }

    /// The total size of the elements in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.layout.elements() * self.layout.dtype.bytes()
    }

    /// Whether the array is read-only.
    #[getter]
    fn read_only(&self) -> bool {
        self.read_only
    }

    /// The event that is signalled when the bytes are ready, or `None` if the array was shared
    /// without an event.
    ///
    /// A library that uses the array waits for the event automatically, on its stream or on the
    /// host. Views and pickles of the array refer to the same event. If parts of the array have
    /// different events, users wait for all of them, and this property returns only the first.
    #[getter]
    pub(crate) fn event(&self) -> Option<Event> {
        self.ready.first().map(Signal::event)
    }

    /// Whether the array is in lent memory. The loan keeps the objects alive that own the bytes.
    #[getter]
    fn _is_lent(&self) -> bool {
        self.memory.is_lent()
    }

    /// Keeps other memory alive as long as this array's memory. `kept` is a `Memory` or an `Array`.
    fn _keep(&self, kept: &Bound<'_, PyAny>) -> PyResult<()> {
        let memory = match kept.cast::<Self>() {
            Ok(array) => Arc::clone(&array.get().memory),
            Err(_) => kept.cast::<Memory>()?.get().shared()?,
        };
        self.memory.keep(memory);
        Ok(())
    }

    /// Raises `StaleHandleError` or `ExporterGoneError` if other processes can no longer open the
    /// array's memory.
    fn _check_openable(&self, py: Python<'_>) -> PyResult<()> {
        match self.layout.elements() {
            0 => Ok(()),
            _ => Ok(self.memory.check_openable(py)?),
        }
    }

    /// Returns a read-only view of the array.
    fn _as_read_only(&self) -> PyResult<Self> {
        let mut array = self.with_layout(self.layout.clone())?;
        array.read_only = true;
        Ok(array)
    }

    /// The name of the array's device, such as `cuda:0`.
    #[getter]
    fn device(&self) -> String {
        self.memory.context.device().to_string()
    }

    /// The address of the first element in this process.
    #[getter]
    fn get_address(&self) -> usize {
        self.address()
    }

    /// Waits on the host until the bytes are ready. Raises `TimedOutError` after `timeout` seconds.
    ///
    /// Other Python threads run meanwhile. Ctrl-C interrupts the wait. A library that uses the
    /// array waits automatically, but without a timeout.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.wait_ready(py, timeout)
    }

    /// Returns a NumPy array that shares the array's bytes.
    ///
    /// First waits until the bytes are ready, and raises `TimedOutError` after `timeout` seconds.
    /// Raises `BufferError` for GPU memory. To copy from a GPU, use `array.torch().cpu().numpy()`
    /// or `array.cupy().get()`.
    #[pyo3(signature = (*, timeout = None))]
    fn numpy<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let own = slf.get();
        if !own.is_on_host() {
            return Err(PyBufferError::new_err(format!(
                "the array is on {}, which NumPy cannot access: copy it with torch or CuPy",
                own.device()
            )));
        }
        let py = slf.py();
        // Wait here, because NumPy would drop the error from a failed wait.
        own.wait_ready(py, timeout)?;
        if own.layout.dtype.typestr().is_some() {
            return Self::import(py, "numpy", "asarray")?.call1((slf,));
        }
        // The element type is a record, or a type that only the package ml_dtypes provides.
        let dtype = own.layout.dtype.numpy(py)?;
        let bytes = Bound::new(py, own.as_raw()?)?;
        Self::numpy(&bytes, timeout)?.call_method1("view", (dtype,))
    }

    /// Returns a torch tensor that shares the array's bytes. torch supports neither read-only
    /// tensors nor negative strides. For a read-only array or one with negative strides, pass
    /// `copy=True` to get a copy.
    #[pyo3(signature = (*, copy = false))]
    fn torch<'py>(slf: &Bound<'py, Self>, copy: bool) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let own = slf.get();
        if own.read_only && !copy {
            return Err(PyBufferError::new_err(
                "this memory is read-only, and torch would write to it: pass copy=True for a copy",
            ));
        }
        if own.layout.is_reversed() {
            if !copy {
                return Err(Failure::from(Error::Unsupported(
                    "torch has no tensors with negative strides: pass copy=True for a copy".into(),
                ))
                .into());
            }
            let copied = Self::copy(slf)?;
            return Self::torch(&copied, false);
        }
        let tensor = if own.layout.dtype.is_float8() {
            let bytes = Bound::new(py, own.as_raw()?)?;
            let dtype = Self::import(py, "torch", &own.layout.dtype.to_string())?;
            Self::torch_of(&bytes)?.call_method1("view", (dtype,))?
        } else {
            Self::torch_of(slf)?
        };
        // If the array is read-only, `copy` is true, so the writable tensor is dropped here.
        match copy {
            true => tensor.call_method0("clone"),
            false => Ok(tensor),
        }
    }

    /// Returns a JAX array that shares the array's bytes. No process may write to the bytes as long
    /// as the JAX array lives.
    fn jax<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let never_written = dlpack::NeverWritten(slf.clone().unbind());
        let array = Self::import(py, "jax", "dlpack.from_dlpack")?.call1((never_written,))?;
        // Hold the JAX array's buffer. Otherwise JAX could reuse the buffer if the program donates
        // it, and write to memory that other processes read.
        Self::import(py, "crosshandle._storages", "hold")?.call1((&array,))?;
        Ok(array)
    }

    /// Returns a CuPy array that shares the array's bytes. The array must be in GPU memory.
    fn cupy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::import(slf.py(), "cupy", "from_dlpack")?.call1((slf,))
    }

    /// Returns a dpctl memory object (USM device memory) over the array's bytes, from the lowest
    /// byte to the highest.
    ///
    /// The memory object belongs to the SYCL context of `queue` (default: dpctl's queue for the
    /// array's device). The process must have loaded this package's Unified Runtime adapter. See
    /// `docs/python.md`.
    #[pyo3(signature = (queue = None))]
    fn dpctl<'py>(
        slf: &Bound<'py, Self>,
        queue: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::usm(slf, "memory_of", queue)
    }

    /// Returns a dpnp array that shares the array's bytes through USM, as with `dpctl`.
    ///
    /// The result is read-only if the array is read-only. Like `dpctl`, this method raises
    /// `UnsupportedError` for a read-only array in memory that was opened with a writable handle.
    #[pyo3(signature = (queue = None))]
    fn dpnp<'py>(
        slf: &Bound<'py, Self>,
        queue: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::usm(slf, "dpnp_of", queue)
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if !self.is_on_host() {
            return Err(PyAttributeError::new_err(
                "the host cannot access this memory",
            ));
        }
        let ended = self.buffer_wait().take();
        if let Some((_, error)) = ended.filter(|(when, _)| when.elapsed() < SAME_WAIT) {
            return Err(error);
        }
        self.wait_ready(py, None)?;
        self.interface(py, 3)
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if !self.is_cuda() {
            return Err(PyAttributeError::new_err(
                "this memory is not a CUDA device's",
            ));
        }
        let interface = self.interface(py, 3)?;
        // If an event is pending, make one of this package's streams wait for it. The consumer then
        // waits for that stream. If several events are pending, wait for all but the last on the
        // host.
        let pending = Vec::from_iter(self.ready.pending());
        let stream = match pending.split_last() {
            Some((last, others)) => {
                for signal in others {
                    signal.event().wait_value(py, signal.value(), None)?;
                }
                let arguments = (last.event(), last.value(), self.device());
                streams(py)?.call_method1("waiting", arguments)?
            }
            None => py.None().into_bound(py),
        };
        interface.set_item("stream", stream)?;
        Ok(interface)
    }

    /// Returns a DLPack capsule for the array. The consumer's `stream` first waits until the bytes
    /// are ready.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let own = slf.get();
        if copy == Some(true) {
            return Err(PyBufferError::new_err(
                "this memory is shared: copy it with the importing library",
            ));
        }
        let device = own.__dlpack_device__();
        if dl_device.is_some_and(|wanted| wanted != device) {
            return Err(PyBufferError::new_err("this memory is on another device"));
        }
        own.order_before(slf.py(), stream)?;
        dlpack::capsule(slf, max_version)
    }

    /// DLPack's table of C functions for this class. Other libraries use it to exchange arrays
    /// without calling Python code.
    #[classattr]
    fn __dlpack_c_exchange_api__(py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(exchange::capsule(py)?.unbind())
    }

    /// Returns DLPack's device type and device number for the array.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device(&self.memory)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut pyo3::ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        slf.get().wait_for_buffer(slf.py())?;
        // SAFETY: the interpreter passes a `view` that is null or can be written.
        unsafe { buffer::fill(slf, view, flags) }
    }

    unsafe fn __releasebuffer__(&self, view: *mut pyo3::ffi::Py_buffer) {
        // SAFETY: the interpreter passes a `view` that `__getbuffer__` has filled in, and releases
        // it once.
        unsafe { buffer::release(view) }
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.layout.shape.first().copied();
        first.ok_or_else(|| PyTypeError::new_err("an array without dimensions has no length"))
    }

    /// Waits until the bytes are ready, and returns a copy in new memory on the same device. The
    /// copy is writable and has no gaps.
    fn __copy__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        Self::copy(slf)
    }

    /// Returns the same copy as `copy.copy`, because elements contain no Python objects.
    fn __deepcopy__<'py>(
        slf: &Bound<'py, Self>,
        _memo: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, Self>> {
        Self::copy(slf)
    }

    /// Returns a NumPy array for `numpy.asarray`. It shares the array's bytes unless `dtype` or
    /// `copy` requires a copy.
    #[pyo3(signature = (dtype = None, *, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = Self::numpy(slf, None)?;
        let dtype = dtype.map_or_else(|| array.getattr("dtype"), Ok)?;
        let is_converted = !dtype.eq(array.getattr("dtype")?)?;
        match (is_converted, copy) {
            (true, Some(false)) => Err(PyValueError::new_err(format!(
                "converting elements of {} to {dtype} needs a copy",
                slf.get().layout.dtype
            ))),
            (true, _) => array.call_method1("astype", (dtype,)),
            (false, Some(true)) => array.call_method0("copy"),
            (false, _) => Ok(array),
        }
    }

    /// Returns an element (`array[0, 3]`), or a NumPy array that shares a part of this array's
    /// bytes (`array[1:]`).
    fn __getitem__<'py>(
        slf: &Bound<'py, Self>,
        index: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::numpy(slf, None)?.get_item(index)
    }

    /// Writes one or more elements, as in `array[:] = 1`.
    fn __setitem__(
        slf: &Bound<'_, Self>,
        index: Bound<'_, PyAny>,
        value: Bound<'_, PyAny>,
    ) -> PyResult<()> {
        Self::numpy(slf, None)?.set_item(index, value)
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Ok(Self::numpy(slf, None)?.try_iter()?.into_any())
    }

    /// Returns the elements as Python numbers in nested lists, with one level of lists for each
    /// dimension.
    fn tolist<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let own = slf.get();
        // For simple types, a memoryview is sufficient, and NumPy need not be installed.
        let is_simple = own
            .layout
            .dtype
            .numbered()
            .is_some_and(|plain| !matches!(plain.kind, Kind::Complex) && plain.bits != 16);
        if is_simple && own.is_on_host() && own.layout.dtype.format().is_some() {
            let view = PyMemoryView::from(slf.as_any())?;
            return view.call_method0("tolist");
        }
        Self::numpy(slf, None)?.call_method0("tolist")
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("crosshandle")?;
        let bundle = module.getattr("share")?.call1((slf,))?;
        let bytes = bundle.call_method0("__bytes__")?.cast_into::<PyBytes>()?;
        pending::reduced(slf, "open", &bytes)
    }

    fn __repr__(&self) -> String {
        let shape = self.layout.shape.iter().map(usize::to_string);
        let shape = Vec::from_iter(shape).join(", ");
        let device = self.memory.context.device();
        let access = if self.read_only { ", read-only" } else { "" };
        format!(
            "<crosshandle.Array ({shape}) of {} on {device}{access}>",
            self.layout.dtype
        )
    }
}
