//! The Python classes `PhysicalMemory` and `VirtualRange`.

use crate::array::arguments::{self, Data};
use crate::error::{Failure, Result};
use crate::handle::PhysicalMemoryHandle;
use crate::interrupt::detached;
use crate::memory::{no_read_only, pending};
use crosshandle::Access;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex, PoisonError};

/// Memory that has no address until a program maps it into a `VirtualRange`. It can be mapped any
/// number of times. The memory exists as long as any process has this object or a mapping of the
/// memory.
///
/// >>> context = crosshandle.Context("host")
/// >>> physical = context.physical_memory(context.device.granularity)
/// >>> opened = crosshandle.open(bytes(physical.handle()))
#[pyclass(frozen, module = "crosshandle")]
pub(crate) struct PhysicalMemory {
    pub(crate) memory: crosshandle::virtual_memory::PhysicalMemory,
    /// The handle with which this process opened the memory, or `None` if this process created it.
    handle: Option<crosshandle::virtual_memory::PhysicalMemoryHandle>,
}

impl PhysicalMemory {
    pub(crate) fn new(
        memory: crosshandle::virtual_memory::PhysicalMemory,
        handle: Option<crosshandle::virtual_memory::PhysicalMemoryHandle>,
    ) -> Self {
        Self { memory, handle }
    }
}

#[pymethods]
impl PhysicalMemory {
    /// The size in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.len()
    }

    /// The memory's name for `crosshandle ps` and error messages, or `None`.
    #[getter]
    fn get_name(&self) -> Option<String> {
        self.memory.name()
    }

    #[setter]
    fn set_name(&self, name: &str) {
        self.memory.set_name(name);
    }

    /// Returns a handle, with which another process can open the physical memory.
    #[pyo3(signature = (*, read_only = false))]
    fn handle(&self, read_only: bool) -> Result<PhysicalMemoryHandle> {
        Ok(PhysicalMemoryHandle(match self.handle {
            // Only a writable handle is available, and it would permit the receiver to write.
            Some(handle) if read_only && !handle.is_read_only() => {
                return Err(no_read_only().into());
            }
            Some(handle) => handle,
            None if read_only => self.memory.handle_read_only()?,
            None => self.memory.handle()?,
        }))
    }

    fn __len__(&self) -> usize {
        self.nbytes()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        pending::reduced(slf, "open", &slf.get().handle(false)?.__bytes__(slf.py()))
    }

    fn __repr__(&self) -> String {
        format!(
            "<crosshandle.PhysicalMemory of {} bytes>",
            self.memory.len()
        )
    }
}

/// A reserved range of addresses in this process. Physical memory is mapped into it. A `with`
/// statement releases the addresses at its end.
///
/// >>> context = crosshandle.Context("host")
/// >>> size = context.device.granularity
/// >>> physical = context.physical_memory(size)
/// >>> with context.reserve(2 * size) as addresses:
/// ...     addresses.map(0, physical)
/// ...     addresses.map(size, physical)
/// ...     addresses.write(0, b"twice")
/// ...     found = addresses.read(size, 5)
/// ...     addresses.protect("r")
/// ...     mapped = addresses.is_mapped(0)
/// ...     addresses.unmap()
/// >>> found, mapped
/// (b'twice', True)
/// >>> addresses.close()
#[pyclass(frozen, module = "crosshandle")]
pub(crate) struct VirtualRange(Mutex<Option<Arc<crosshandle::virtual_memory::VirtualRange>>>);

impl VirtualRange {
    pub(crate) fn new(range: crosshandle::virtual_memory::VirtualRange) -> Self {
        Self(Mutex::new(Some(Arc::new(range))))
    }

    fn range(&self) -> PyResult<Arc<crosshandle::virtual_memory::VirtualRange>> {
        let range = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let range = range.as_ref().map(Arc::clone);
        range.ok_or_else(|| PyValueError::new_err("this range was closed"))
    }
}

/// Parses an access argument: `"rw"`, `"r"`, or `None` for no access.
fn access_of(access: Option<&str>) -> PyResult<Option<Access>> {
    match access {
        None => Ok(None),
        Some("rw") => Ok(Some(Access::ReadWrite)),
        Some("r") => Ok(Some(Access::ReadOnly)),
        Some(other) => Err(PyValueError::new_err(format!(
            "access is \"rw\", \"r\" or None, not {other:?}"
        ))),
    }
}

fn end_of(offset: usize, nbytes: Option<usize>, all: usize) -> usize {
    let rest = all.saturating_sub(offset);
    offset.saturating_add(nbytes.unwrap_or(rest))
}

#[pymethods]
impl VirtualRange {
    /// The size in bytes.
    #[getter]
    fn nbytes(&self) -> PyResult<usize> {
        Ok(self.range()?.len())
    }

    /// The first address of the range, in this process.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        Ok(self.range()?.as_ptr().addr())
    }

    /// Maps physical memory at byte `offset` of the range.
    ///
    /// Maps `nbytes` bytes of the memory, starting at its byte `memory_offset` (default: all of
    /// it). `access` is `"rw"`, `"r"` or `None`. With `None`, every access faults. Offsets and
    /// sizes must be multiples of the device's granularity.
    #[pyo3(signature = (offset, memory, *, memory_offset = 0, nbytes = None, access = Some("rw")))]
    fn map(
        &self,
        py: Python<'_>,
        offset: usize,
        memory: &PhysicalMemory,
        memory_offset: usize,
        nbytes: Option<usize>,
        access: Option<&str>,
    ) -> PyResult<()> {
        let (range, access) = (self.range()?, access_of(access)?);
        let part = memory_offset..end_of(memory_offset, nbytes, memory.memory.len());
        Ok(detached(py, || {
            range.map(offset, &memory.memory, part, access)
        })?)
    }

    /// Unmaps `nbytes` bytes from byte `offset` (default: the whole range). These bytes must
    /// consist of one mapping or several adjacent mappings.
    #[pyo3(signature = (offset = 0, nbytes = None))]
    fn unmap(&self, py: Python<'_>, offset: usize, nbytes: Option<usize>) -> PyResult<()> {
        let range = self.range()?;
        let part = offset..end_of(offset, nbytes, range.len());
        Ok(detached(py, || range.unmap(part))?)
    }

    /// Changes the access to the mappings in `nbytes` bytes from byte `offset` (default: the whole
    /// range). `access` has the same meaning as for `map`.
    #[pyo3(signature = (access, offset = 0, nbytes = None))]
    fn protect(
        &self,
        py: Python<'_>,
        access: Option<&str>,
        offset: usize,
        nbytes: Option<usize>,
    ) -> PyResult<()> {
        let (range, access) = (self.range()?, access_of(access)?);
        let part = offset..end_of(offset, nbytes, range.len());
        Ok(detached(py, || range.set_access(part, access))?)
    }

    /// Returns whether memory is mapped at byte `offset` of the range.
    fn is_mapped(&self, offset: usize) -> PyResult<bool> {
        Ok(self.range()?.is_mapped(offset))
    }

    /// Returns a copy of `nbytes` bytes from byte `offset`. The bytes must be in one mapping, and
    /// the host must be able to access the memory.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        nbytes: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let range = self.range()?;
        let part = offset..offset.saturating_add(nbytes);
        // Check the mapping before allocating the buffer, because the range may be far larger than
        // its mappings.
        detached(py, || range.with_bytes(part.clone(), |_| ()))?;
        arguments::filled(py, nbytes, |into| {
            let read = range.with_bytes(part, |bytes| bytes.read(0, into));
            read.flatten().map_err(Failure::from)
        })
    }

    /// Copies `data` to byte `offset` of the range. The bytes must be in one mapping, and the host
    /// must be able to access the memory.
    fn write(&self, py: Python<'_>, offset: usize, data: Data) -> PyResult<()> {
        let range = self.range()?;
        let part = offset..offset.saturating_add(data.len());
        Ok(detached(py, || {
            range.with_bytes(part, |bytes| bytes.write(0, &data))?
        })?)
    }

    /// Unmaps all physical memory, and releases the addresses.
    fn close(&self, py: Python<'_>) {
        let range = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(range));
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

    fn __repr__(&self) -> String {
        match self.range() {
            Ok(range) => format!("<crosshandle.VirtualRange of {} bytes>", range.len()),
            Err(_) => "<crosshandle.VirtualRange, closed>".into(),
        }
    }
}
