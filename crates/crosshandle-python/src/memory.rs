//! Memory.

use crate::array::{Array, Layout};
use crate::error::Result;
use crate::handle::MemoryHandle;
use crate::interrupt::detached;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::sync::{Arc, Mutex, PoisonError};

/// Memory that processes share: allocated by a context, or opened from a handle.
///
/// `with` closes it at the end; arrays made from it keep it open as long as they live. After the last
/// importer and the exporter have closed it, its bytes may be used again.
#[pyclass(frozen, module = "crosshandle")]
pub(crate) struct Memory {
    shared: Mutex<Option<Arc<SharedMemory>>>,
}

/// What arrays keep of memory.
pub(crate) struct SharedMemory {
    pub(crate) memory: crosshandle::Memory,
    /// The handle by which it was opened, if it was.
    handle: Option<crosshandle::MemoryHandle>,
    pub(crate) context: crosshandle::Context,
}

impl SharedMemory {
    pub(crate) fn is_read_only(&self) -> bool {
        self.memory.access() == crosshandle::Access::ReadOnly
    }

    pub(crate) fn address(&self) -> usize {
        self.memory.as_ptr().addr()
    }

    /// Returns a handle: a new one in the process that allocated it, else the one that it was opened by.
    pub(crate) fn handle(&self, read_only: bool) -> Result<crosshandle::MemoryHandle> {
        Ok(match self.handle {
            Some(handle) => handle,
            None if read_only => self.memory.handle_read_only()?,
            None => self.memory.handle()?,
        })
    }
}

impl Memory {
    pub(crate) fn allocated(memory: crosshandle::Memory, context: crosshandle::Context) -> Self {
        Self::new(memory, None, context)
    }

    pub(crate) fn open(
        py: Python<'_>,
        context: &crosshandle::Context,
        handle: crosshandle::MemoryHandle,
        writable: bool,
    ) -> Result<Self> {
        let memory = detached(py, || match writable {
            true => context.open_memory(&handle),
            false => context.open_memory_read_only(&handle),
        })?;
        Ok(Self::new(memory, Some(handle), context.clone()))
    }

    fn new(
        memory: crosshandle::Memory,
        handle: Option<crosshandle::MemoryHandle>,
        context: crosshandle::Context,
    ) -> Self {
        let shared = Arc::new(SharedMemory {
            memory,
            handle,
            context,
        });
        Self {
            shared: Mutex::new(Some(shared)),
        }
    }

    pub(crate) fn shared(&self) -> PyResult<Arc<SharedMemory>> {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = shared.as_ref().map(Arc::clone);
        shared.ok_or_else(|| PyValueError::new_err("this memory was closed"))
    }
}

#[pymethods]
impl Memory {
    /// The size in bytes.
    #[getter]
    fn nbytes(&self) -> PyResult<usize> {
        Ok(self.shared()?.memory.len())
    }

    /// The address in this process.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        Ok(self.shared()?.address())
    }

    /// Whether it can be read only.
    #[getter]
    fn read_only(&self) -> PyResult<bool> {
        Ok(self.shared()?.is_read_only())
    }

    /// The name that `crosshandle ps` and errors show; `None` if it has none. The process that allocated
    /// it can set it.
    #[getter]
    fn get_name(&self) -> PyResult<Option<String>> {
        Ok(self.shared()?.memory.name())
    }

    #[setter]
    fn set_name(&self, name: &str) -> PyResult<()> {
        self.shared()?.memory.set_name(name);
        Ok(())
    }

    /// Whether another process has it open.
    #[getter]
    fn in_use(&self) -> PyResult<bool> {
        Ok(self.shared()?.memory.is_in_use())
    }

    /// Returns the handle to send to other processes.
    #[pyo3(signature = (*, read_only = false))]
    fn handle(&self, read_only: bool) -> PyResult<MemoryHandle> {
        Ok(MemoryHandle(self.shared()?.handle(read_only)?))
    }

    /// Returns a view of it as an array, without a copy. `shape` is a number or a tuple (default: all
    /// elements in one dimension); `dtype` is a NumPy dtype or a name such as `"float32"`, `offset` is in
    /// bytes. The array keeps the memory open.
    #[pyo3(signature = (shape = None, dtype = None, *, offset = 0))]
    fn array(
        &self,
        shape: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
        offset: usize,
    ) -> PyResult<Array> {
        let shared = self.shared()?;
        let layout = Layout::of(shape, dtype, shared.memory.len(), offset)?;
        Array::new(shared, layout)
    }

    /// Copies bytes out of host memory.
    #[pyo3(signature = (nbytes = None, *, offset = 0))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        nbytes: Option<usize>,
        offset: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let shared = self.shared()?;
        let all = shared.memory.len().saturating_sub(offset);
        let mut bytes = vec![0; nbytes.unwrap_or(all)];
        detached(py, || shared.memory.read(offset, &mut bytes))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Copies bytes into host memory.
    #[pyo3(signature = (data, *, offset = 0))]
    fn write(&self, py: Python<'_>, data: Vec<u8>, offset: usize) -> PyResult<()> {
        let shared = self.shared()?;
        Ok(detached(py, || shared.memory.write(offset, &data))?)
    }

    /// Closes it for this process, as far as no array keeps it open.
    fn close(&self, py: Python<'_>) {
        let shared = self
            .shared
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        py.detach(|| drop(shared));
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

    fn __len__(&self) -> PyResult<usize> {
        self.nbytes()
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let shared = self.shared()?;
        let handle = shared.handle(shared.is_read_only())?;
        let bytes = PyBytes::new(py, handle.as_bytes());
        Ok((py.import("crosshandle")?.getattr("open")?, (bytes,)))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let Ok(shared) = self.shared() else {
            return "<crosshandle.Memory, closed>".into();
        };
        let name = shared.memory.name().map_or(String::new(), |name| {
            format!(
                " {}",
                PyString::new(py, &name)
                    .repr()
                    .map_or(name, |quoted| quoted.to_string())
            )
        });
        let access = if shared.is_read_only() {
            ", read-only"
        } else {
            ""
        };
        let (len, device) = (shared.memory.len(), shared.context.device());
        format!("<crosshandle.Memory{name} of {len} bytes on {device}{access}>")
    }
}
