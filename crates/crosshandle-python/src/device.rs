//! Devices.

use crate::error::Result;
use pyo3::prelude::*;

/// A device: the host's own memory, or a GPU.
///
/// `Device("host")`, `Device("cuda:0")`, `Device("level_zero:0")`. Raises `NoDeviceError` with what was looked
/// for and where.
#[pyclass(frozen, module = "crosshandle")]
pub(crate) struct Device(pub(crate) crosshandle::Device);

#[pymethods]
impl Device {
    #[new]
    #[pyo3(signature = (name = "host"))]
    fn new(name: &str) -> Result<Self> {
        Ok(Self(crosshandle::Device::find(name)?))
    }

    /// All devices of this machine whose drivers are here.
    #[staticmethod]
    fn all(py: Python<'_>) -> Vec<Self> {
        let all = py.detach(crosshandle::Device::all);
        all.into_iter().map(Self).collect()
    }

    /// The name that finds the device again, such as `cuda:0`.
    #[getter]
    fn name(&self) -> String {
        self.0.to_string()
    }

    /// What the driver calls it.
    #[getter]
    fn description(&self) -> &str {
        &self.0.info().name
    }

    /// The driver that it belongs to: `host`, `cuda` or `level_zero`.
    #[getter]
    fn backend(&self) -> String {
        self.0.info().backend.to_string()
    }

    /// Its number among those of its backend, in this process.
    #[getter]
    fn index(&self) -> usize {
        self.0.info().index
    }

    /// Its identity, the same in every process on this machine.
    #[getter]
    fn uuid(&self) -> String {
        self.0.info().uuid.to_string()
    }

    /// Its memory, in bytes.
    #[getter]
    fn total_memory(&self) -> u64 {
        self.0.info().total_memory
    }

    /// Its memory that is free now, in bytes; `None` if the driver doesn't say.
    #[getter]
    fn free_memory(&self) -> Option<u64> {
        self.0.free_memory()
    }

    /// What the sizes of physical memory and of mappings are multiples of, in bytes.
    #[getter]
    fn granularity(&self) -> usize {
        self.0.info().granularity
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.0.info().uuid == other.0.info().uuid
    }

    fn __hash__(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.0.info().uuid.hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        format!("<crosshandle.Device {} ({})>", self.0, self.0.info().name)
    }
}
