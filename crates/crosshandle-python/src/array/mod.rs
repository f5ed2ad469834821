//! Typed views of memory, and the protocols by which array libraries take them.

mod buffer;
mod dlpack;
mod dtype;
pub(crate) mod foreign;
mod layout;

pub(crate) use dtype::Dtype;
pub(crate) use layout::Layout;

use crate::memory::SharedMemory;
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use std::ffi::c_int;
use std::sync::Arc;

/// A view of memory as an array, without a copy. It keeps the memory open.
///
/// Array libraries take it by the buffer protocol, `__array_interface__` (NumPy), DLPack (torch, JAX, CuPy,
/// NumPy) and `__cuda_array_interface__` (CuPy, numba, torch); `numpy()`, `torch()`, `jax()` and
/// `cupy()` are short for that. What they make keeps the memory open too.
#[pyclass(frozen, module = "crosshandle", weakref)]
pub(crate) struct Array {
    pub(crate) memory: Arc<SharedMemory>,
    pub(crate) layout: Layout,
    read_only: bool,
}

impl Array {
    pub(crate) fn new(memory: Arc<SharedMemory>, layout: Layout) -> PyResult<Self> {
        layout.check(memory.memory.len())?;
        let read_only = memory.is_read_only();
        Ok(Self {
            memory,
            layout,
            read_only,
        })
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
            return Err(PyTypeError::new_err(format!(
                "NumPy has no dtype for {}: use DLPack",
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

    /// The name of the elements' type, such as `float32`.
    #[getter]
    fn dtype(&self) -> String {
        self.layout.dtype.to_string()
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

    /// The address of the first element in this process.
    #[getter]
    fn get_address(&self) -> usize {
        self.address()
    }

    /// Returns a NumPy array of the same bytes.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::import(slf.py(), "numpy", "asarray")?.call1((slf,))
    }

    /// Returns a torch tensor of the same bytes. A tensor cannot be read-only: of read-only memory this
    /// makes a copy, if `copy=True` says so.
    #[pyo3(signature = (*, copy = false))]
    fn torch<'py>(slf: &Bound<'py, Self>, copy: bool) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        if !slf.get().read_only {
            let tensor = Self::import(py, "torch", "from_dlpack")?.call1((slf,))?;
            return if copy {
                tensor.call_method0("clone")
            } else {
                Ok(tensor)
            };
        }
        if !copy {
            return Err(PyBufferError::new_err(
                "this memory is read-only, and torch would write to it: pass copy=True for a copy",
            ));
        }
        let copied = Self::numpy(slf)?.call_method0("copy")?;
        Self::import(py, "torch", "from_numpy")?.call1((copied,))
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

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if !self.is_on_host() {
            return Err(PyAttributeError::new_err(
                "the host cannot access this memory",
            ));
        }
        self.interface(py, 3)
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.memory.context.device().info().backend.to_string() != "cuda" {
            return Err(PyAttributeError::new_err(
                "this memory is not a CUDA device's",
            ));
        }
        // Without a stream: who takes it waits for the event that says that the bytes are there.
        let interface = self.interface(py, 3)?;
        interface.set_item("stream", py.None())?;
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
        // The bytes are there when the program says so, by an event: there is no stream to wait for.
        let _ = stream;
        let own = slf.get();
        if copy == Some(true) {
            return Err(PyBufferError::new_err(
                "this memory is shared: copy it with the importing library",
            ));
        }
        let device = own.__dlpack_device__()?;
        if dl_device.is_some_and(|wanted| wanted != device) {
            return Err(PyBufferError::new_err("this memory is on another device"));
        }
        dlpack::capsule(slf, max_version)
    }

    /// Returns the device of the bytes, as DLPack numbers it.
    fn __dlpack_device__(&self) -> PyResult<(i32, i32)> {
        dlpack::device(&self.memory)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut pyo3::ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
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

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let module = slf.py().import("crosshandle")?;
        let bundle = module.getattr("share")?.call1((slf,))?;
        let bytes = bundle.call_method0("__bytes__")?.cast_into::<PyBytes>()?;
        Ok((module.getattr("open")?, (bytes,)))
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
