//! What other libraries get of an array: the entries of the array interfaces, the order with their
//! streams, and their own views.

use super::{Array, Layout, dlpack};
use crate::context::streams;
use crate::foreign::{Foreign, Place, torch_tensor};
use crate::handle::MemoryHandle;
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// DLPack's numbers for CUDA's two default streams: the legacy default stream, and the per-thread
/// default stream. The legacy stream synchronizes with all blocking streams of the device.
const LEGACY_STREAM: i64 = 1;
const PER_THREAD_STREAM: i64 = 2;

impl Array {
    /// Returns the entries that `__array_interface__` and `__cuda_array_interface__` have in
    /// common.
    pub(super) fn interface<'py>(
        &self,
        py: Python<'py>,
        version: u32,
    ) -> PyResult<Bound<'py, PyDict>> {
        let Some(typestr) = self.layout.dtype.typestr() else {
            return Err(PyAttributeError::new_err(format!(
                "the array interfaces do not support {}: use numpy() or DLPack",
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

    /// Makes the consumer's stream wait until the bytes are ready. Waits on the host if the array's
    /// device has no CUDA streams.
    ///
    /// `stream` is the argument of `__dlpack__`: `None` means the legacy default stream, and -1
    /// means no wait.
    pub(super) fn order_before(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if self.is_ready() {
            return Ok(());
        }
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
        for signal in self.ready.pending() {
            let arguments = (signal.event(), number, signal.value(), self.device());
            streams(py)?.call_method1("wait", arguments)?;
        }
        Ok(())
    }

    /// Waits until the bytes are ready, and returns a copy without gaps in new memory on the same
    /// device.
    pub(super) fn copy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let sharing = Self::import(slf.py(), "crosshandle._sharing", "copy_of")?;
        Ok(sharing.call1((slf,))?.cast_into()?)
    }

    /// Returns a description of the array in the form that is used for other libraries' arrays.
    /// `foreign::copied` needs it.
    pub(crate) fn described(slf: &Bound<'_, Self>) -> PyResult<Foreign> {
        let own = slf.get();
        let place = match own.is_on_host() {
            true => Place::Host,
            false => Place::SomeCuda,
        };
        let Layout {
            dtype,
            shape,
            strides,
            ..
        } = own.layout.clone();
        let (address, keep) = (own.address(), slf.clone().into_any().unbind());
        Foreign::new(place, address, dtype, shape, Some(strides), true, keep)
    }

    /// Returns a torch tensor over the same bytes. torch has no read-only tensors. If the array is
    /// read-only, the caller must not let the program access the tensor.
    pub(super) fn torch_of<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let own = slf.get();
        if !own.is_ready() {
            own.order_before_torch(py)?;
        }
        // The order with the device's current stream is established. Neither of the following ways
        // asks for the device or for a stream, which would take most of the time.
        if let Some(tensor) = torch_tensor(py, || dlpack::managed(own, false))? {
            return Ok(tensor);
        }
        let from_dlpack = Self::import(py, "torch", "utils.dlpack.from_dlpack")?;
        from_dlpack.call1((dlpack::unversioned(py, own)?,))
    }

    /// Makes torch's current stream of the array's device wait until the bytes are ready. Waits on
    /// the host if the device has no CUDA streams.
    fn order_before_torch(&self, py: Python<'_>) -> PyResult<()> {
        if !self.is_cuda() {
            return self.wait_ready(py, None);
        }
        let (_, number) = dlpack::device(&self.memory);
        let cuda = py.import("torch")?.getattr("cuda")?;
        let stream = cuda.call_method1("current_stream", (number,))?;
        for signal in self.ready.pending() {
            let event = Bound::new(py, signal.event())?;
            crate::streams::wait(&event, &stream, Some(signal.value()))?;
        }
        Ok(())
    }

    /// Waits until the bytes are ready, and calls a function in `crosshandle._libraries.usm` with
    /// the memory's handle and the array's byte range.
    pub(super) fn usm<'py>(
        slf: &Bound<'py, Self>,
        function: &str,
        queue: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let own = slf.get();
        own.wait_ready(py, None)?;
        let function = Self::import(py, "crosshandle._libraries.usm", function)?;
        let handle = MemoryHandle(own.memory.handle_of(own.read_only)?);
        // `reach` never fails for a checked layout.
        let (before, after) = own.layout.reach().unwrap_or_default();
        let first = own.layout.offset - before;
        function.call1((slf, handle, first, before + after, queue))
    }

    pub(super) fn import<'py>(
        py: Python<'py>,
        module: &str,
        what: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut found = py.import(module)?.into_any();
        for name in what.split('.') {
            found = found.getattr(name)?;
        }
        Ok(found)
    }
}
