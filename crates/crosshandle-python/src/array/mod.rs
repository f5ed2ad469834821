//! Typed views of memory, and the protocols by which array libraries take them.

pub(crate) mod arguments;
mod buffer;
pub(crate) mod dlpack;
mod dtype;
mod layout;

pub(crate) use crosshandle::handle::bundle::MAX_DIMENSIONS;
pub(crate) use dtype::{Dtype, dtype_of, numpy_dtype};
pub(crate) use layout::Layout;

use crate::context::streams;
use crate::event::Event;
use crate::handle::MemoryHandle;
use crate::memory::SharedMemory;
use crate::memory::pending;
use crosshandle::handle::BackendKind;
use dtype::Kind;
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView, PyTuple};
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The numbers of CUDA's default streams: the one that waits for all others, and each thread's own.
const LEGACY_STREAM: i64 = 1;
const PER_THREAD_STREAM: i64 = 2;

/// A view of memory as an array, without a copy. It keeps the memory open.
///
/// Array libraries take it by the buffer protocol, `__array_interface__` (NumPy), DLPack (torch, JAX, CuPy,
/// NumPy) and `__cuda_array_interface__` (CuPy, numba, torch); `numpy()`, `torch()`, `jax()` and
/// `cupy()` are short for that. `dpctl()` and `dpnp()` open the memory once more, as USM. What they make keeps the memory open too.
#[pyclass(frozen, module = "crosshandle", weakref)]
pub(crate) struct Array {
    pub(crate) memory: Arc<SharedMemory>,
    pub(crate) layout: Layout,
    pub(crate) read_only: bool,
    /// The event and the number of the signal that say that the bytes are there.
    ready: Option<(Py<Event>, u64)>,
    /// What ended the last wait for a view of the buffer, and when.
    buffer_wait: Mutex<Option<(Instant, PyErr)>>,
}

/// How long after a failed wait for a view of the buffer another protocol of the same array fails in the same way. Halved:
/// on a slow machine NumPy waits a second time. Doubled: who catches the error and tries again at once gets it twice.
const SAME_WAIT: Duration = Duration::from_millis(50);

impl Array {
    pub(crate) fn new(memory: Arc<SharedMemory>, layout: Layout) -> PyResult<Self> {
        Self::of(memory, layout, false)
    }

    /// Makes an array that can be read only, if `read_only` or the memory says so.
    pub(crate) fn of(memory: Arc<SharedMemory>, layout: Layout, read_only: bool) -> PyResult<Self> {
        layout.check(memory.memory.len())?;
        let read_only = read_only || memory.is_read_only();
        Ok(Self {
            memory,
            layout,
            read_only,
            ready: None,
            buffer_wait: Mutex::new(None),
        })
    }

    /// Makes whatever takes the array wait for a signal first.
    pub(crate) fn after(mut self, event: Py<Event>, value: u64) -> Self {
        self.ready = Some((event, value));
        self
    }

    /// Waits on the host until the bytes are there.
    fn wait_ready(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        match &self.ready {
            Some((event, value)) => event.get().wait_value(py, *value, timeout),
            None => Ok(()),
        }
    }

    /// Waits as [`wait_ready`](Self::wait_ready) does, for a view of the buffer. NumPy drops what this raises, and goes on to
    /// another protocol; what ended the wait is raised there again, since it would wait once more.
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

    /// Returns whether the bytes are known to be there, so that nothing has to wait: as a rule the signal has
    /// completed long before another process gets to the array.
    fn is_ready(&self) -> bool {
        match &self.ready {
            Some((event, value)) => matches!(event.get().event.try_wait_value(*value), Ok(true)),
            None => true,
        }
    }

    fn is_cuda(&self) -> bool {
        self.memory.context.device().info().backend == BackendKind::Cuda
    }

    fn address(&self) -> usize {
        self.memory.address() + self.layout.offset
    }

    /// Returns whether programs on the host may follow the address.
    fn is_on_host(&self) -> bool {
        self.memory.memory.bytes().is_ok()
    }

    /// Returns what `__array_interface__` and `__cuda_array_interface__` have in common.
    fn interface<'py>(&self, py: Python<'py>, version: u32) -> PyResult<Bound<'py, PyDict>> {
        let Some(typestr) = self.layout.dtype.typestr() else {
            return Err(PyAttributeError::new_err(format!(
                "no array interface says what {} is: use numpy() or DLPack",
                self.layout.dtype
            )));
        };
        let interface = PyDict::new(py);
        interface.set_item("version", version)?;
        interface.set_item("shape", PyTuple::new(py, &self.layout.shape)?)?;
        interface.set_item("typestr", typestr)?;
        interface.set_item("data", (self.address(), self.read_only))?;
        match self.layout.is_contiguous() {
            true => interface.set_item("strides", py.None())?,
            false => interface.set_item("strides", PyTuple::new(py, &self.layout.strides)?)?,
        }
        Ok(interface)
    }

    /// Makes a stream that takes the array wait until the bytes are there, or the host where there are no streams.
    /// `stream` is as DLPack has it: `None` is the default stream, −1 asks for no wait.
    fn order_before(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let Some((event, value)) = self.ready.as_ref().filter(|_| !self.is_ready()) else {
            return Ok(());
        };
        let number: Option<i64> = match stream {
            None => None,
            Some(stream) => stream.extract().ok(),
        };
        if number == Some(-1) {
            return Ok(());
        }
        if !self.is_cuda() || number == Some(PER_THREAD_STREAM) {
            return self.wait_ready(py, None);
        }
        let number = number.unwrap_or(LEGACY_STREAM);
        let arguments = (event.clone_ref(py), number, *value, self.device());
        streams(py)?.call_method1("wait", arguments)?;
        Ok(())
    }

    /// Returns the same bytes as elements of a type that every library has, for those that lack the elements' own.
    fn as_raw(&self, py: Python<'_>) -> PyResult<Self> {
        let layout = Layout {
            dtype: self.layout.dtype.raw(),
            ..self.layout.clone()
        };
        self.with_layout(py, layout)
    }

    /// Returns other elements of the same memory, which are ready when these are.
    fn with_layout(&self, py: Python<'_>, layout: Layout) -> PyResult<Self> {
        let array = Self::of(Arc::clone(&self.memory), layout, self.read_only)?;
        Ok(match &self.ready {
            Some((event, value)) => array.after(event.clone_ref(py), *value),
            None => array,
        })
    }

    /// Returns a tensor, which can write memory that is read-only: the caller sees to that.
    fn torch_of<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let from_dlpack = Self::import(py, "torch", "utils.dlpack.from_dlpack")?;
        let own = slf.get();
        if own.is_ready() {
            // Without torch's questions for device and stream, which take longer than all the rest.
            return from_dlpack.call1((dlpack::unversioned(py, own)?,));
        }
        match own.read_only {
            true => from_dlpack.call1((dlpack::NeverWritten(slf.clone().unbind()),)),
            false => from_dlpack.call1((slf,)),
        }
    }

    /// Calls a function of `crosshandle._libraries.usm` with where the array's bytes are.
    fn usm<'py>(
        slf: &Bound<'py, Self>,
        function: &str,
        queue: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let own = slf.get();
        own.wait_ready(py, None)?;
        let function = Self::import(py, "crosshandle._libraries.usm", function)?;
        let handle = MemoryHandle(own.memory.handle_of(own.read_only)?);
        // A layout that was checked has a reach.
        let (before, after) = own.layout.reach().unwrap_or_default();
        let first = own.layout.offset - before;
        function.call1((slf, handle, first, before + after, queue))
    }

    fn import<'py>(py: Python<'py>, module: &str, what: &str) -> PyResult<Bound<'py, PyAny>> {
        let mut found = py.import(module)?.into_any();
        for name in what.split('.') {
            found = found.getattr(name)?;
        }
        Ok(found)
    }
}

#[pymethods]
impl Array {
    /// The size of each dimension, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.layout.shape)
    }

    /// The distance of neighbours in each dimension, in bytes.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.layout.strides)
    }

    /// The name of the elements' type, such as `float32` or `<M8[ns]`. Of records it is NumPy's dtype.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let dtype = &self.layout.dtype;
        if dtype.numbered().is_none() && dtype.typestr().is_none() {
            return dtype.numpy(py);
        }
        Ok(dtype.to_string().into_pyobject(py)?.into_any())
    }

    /// The bytes of an element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.layout.dtype.bytes()
    }

    /// The same array with its dimensions in the opposite order.
    #[getter]
    #[pyo3(name = "T")]
    fn transposed(&self, py: Python<'_>) -> PyResult<Self> {
        let mut layout = self.layout.clone();
        layout.shape.reverse();
        layout.strides.reverse();
        self.with_layout(py, layout)
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

    /// The bytes of all elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.layout.elements() * self.layout.dtype.bytes()
    }

    /// Whether it can be read only.
    #[getter]
    fn read_only(&self) -> bool {
        self.read_only
    }

    /// The event that says that the bytes are there, if the bundle had one. Whatever takes the array waits for it: a
    /// stream if the library has one, otherwise the host.
    #[getter]
    pub(crate) fn event(&self, py: Python<'_>) -> Option<Py<Event>> {
        let (event, _) = self.ready.as_ref()?;
        Some(event.clone_ref(py))
    }

    /// Whether it is in memory that is lent, with what its library keeps the bytes by.
    #[getter]
    fn _is_lent(&self) -> bool {
        self.memory.is_lent()
    }

    /// Returns the same array for reading only.
    fn _as_read_only(&self, py: Python<'_>) -> PyResult<Self> {
        let mut array = self.with_layout(py, self.layout.clone())?;
        array.read_only = true;
        Ok(array)
    }

    /// The name of the device that the bytes are on, such as `cuda:0`.
    #[getter]
    fn device(&self) -> String {
        self.memory.context.device().to_string()
    }

    /// The address of the first element in this process.
    #[getter]
    fn get_address(&self) -> usize {
        self.address()
    }

    /// Waits on the host until the bytes are there, at most `timeout` seconds. Other threads run meanwhile; Ctrl-C ends
    /// the wait. Whatever takes the array waits by itself, without a timeout.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.wait_ready(py, timeout)
    }

    /// Returns a NumPy array of the same bytes. Memory of a GPU is refused: a copy is `array.torch().cpu().numpy()`
    /// or `array.cupy().get()`. Waits until the bytes are there, at most `timeout` seconds.
    #[pyo3(signature = (*, timeout = None))]
    fn numpy<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let own = slf.get();
        if !own.is_on_host() {
            return Err(PyBufferError::new_err(format!(
                "the bytes are on {}, where NumPy cannot reach them: copy them with torch or CuPy",
                own.device()
            )));
        }
        let py = slf.py();
        // Here, since NumPy would drop what ends the wait.
        own.wait_ready(py, timeout)?;
        if own.layout.dtype.typestr().is_some() {
            return Self::import(py, "numpy", "asarray")?.call1((slf,));
        }
        // A record, or a type that NumPy knows only by the package that JAX brings.
        let dtype = own.layout.dtype.numpy(py)?;
        let bytes = Bound::new(py, own.as_raw(py)?)?;
        Self::numpy(&bytes, timeout)?.call_method1("view", (dtype,))
    }

    /// Returns a torch tensor of the same bytes. A tensor cannot be read-only: of read-only memory this
    /// makes a copy, if `copy=True` says so.
    #[pyo3(signature = (*, copy = false))]
    fn torch<'py>(slf: &Bound<'py, Self>, copy: bool) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let own = slf.get();
        if own.read_only && !copy {
            return Err(PyBufferError::new_err(
                "this memory is read-only, and torch would write to it: pass copy=True for a copy",
            ));
        }
        let tensor = if own.layout.dtype.is_float8() {
            let bytes = Bound::new(py, own.as_raw(py)?)?;
            let dtype = Self::import(py, "torch", &own.layout.dtype.to_string())?;
            Self::torch_of(&bytes)?.call_method1("view", (dtype,))?
        } else {
            Self::torch_of(slf)?
        };
        // Of read-only memory, the tensor that could write it ends here.
        match copy {
            true => tensor.call_method0("clone"),
            false => Ok(tensor),
        }
    }

    /// Returns a JAX array of the same bytes, which nobody may write as long as it lives.
    fn jax<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let never_written = dlpack::NeverWritten(slf.clone().unbind());
        Self::import(slf.py(), "jax", "dlpack.from_dlpack")?.call1((never_written,))
    }

    /// Returns a CuPy array of the same bytes, for memory of a GPU.
    fn cupy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::import(slf.py(), "cupy", "from_dlpack")?.call1((slf,))
    }

    /// Returns memory of dpctl, USM of a device, of the bytes from the lowest to the highest one of the array. It is in
    /// the context of `queue`, or of the queue that dpctl uses for the array's device. The process has loaded this
    /// package's Unified Runtime adapter: see `docs/python.md`.
    #[pyo3(signature = (queue = None))]
    fn dpctl<'py>(
        slf: &Bound<'py, Self>,
        queue: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::usm(slf, "memory_of", queue)
    }

    /// Returns a dpnp array of the same bytes, in USM as `dpctl` has it. Of read-only memory it is not writable; read-only
    /// arrays of memory that was opened by a handle for writing are refused, as they are by `dpctl`.
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
        // A stream that waits for the event, if there is one; who takes the array waits for that.
        let stream = match self.ready.as_ref().filter(|_| !self.is_ready()) {
            Some((event, value)) => {
                let arguments = (event.clone_ref(py), *value, self.device());
                streams(py)?.call_method1("waiting", arguments)?
            }
            None => py.None().into_bound(py),
        };
        interface.set_item("stream", stream)?;
        Ok(interface)
    }

    /// Returns a DLPack capsule.
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

    /// Returns the device of the bytes, as DLPack numbers it.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device(&self.memory)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut pyo3::ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        slf.get().wait_for_buffer(slf.py())?;
        // SAFETY: the interpreter passes a view to be filled.
        unsafe { buffer::fill(slf, view, flags) }
    }

    unsafe fn __releasebuffer__(&self, view: *mut pyo3::ffi::Py_buffer) {
        // SAFETY: the interpreter passes a view that was filled.
        unsafe { buffer::release(view) }
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.layout.shape.first().copied();
        first.ok_or_else(|| PyTypeError::new_err("an array without dimensions has no length"))
    }

    /// Returns NumPy's array of the same bytes, as `numpy.asarray` asks for it.
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
                "elements of {} become {dtype} by a copy alone",
                slf.get().layout.dtype
            ))),
            (true, _) => array.call_method1("astype", (dtype,)),
            (false, Some(true)) => array.call_method0("copy"),
            (false, _) => Ok(array),
        }
    }

    /// Returns an element, or NumPy's view of a part: `array[0, 3]`, `array[1:]`. The view is memory of this package too.
    fn __getitem__<'py>(
        slf: &Bound<'py, Self>,
        index: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::numpy(slf, None)?.get_item(index)
    }

    /// Writes elements: `array[:] = 1`.
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

    /// Returns the elements as a list of Python's numbers, with a list for each row.
    fn tolist<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let own = slf.get();
        // Without NumPy, where that is possible.
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
