//! Devices.

use crate::error::Result;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// A device: the host's own memory, or a GPU.
///
/// `Device("host")` (also `"cpu"`), `Device("cuda:0")` (also `"cuda"`), `Device("level_zero:0")`. A device of torch
/// is accepted too: `Device(tensor.device)`. Raises `NoDeviceError` with what was looked for and where.
///
/// >>> crosshandle.Device("cpu").name
/// 'host:0'
#[pyclass(frozen, module = "crosshandle")]
pub(crate) struct Device(pub(crate) crosshandle::Device);

#[pymethods]
impl Device {
    #[new]
    #[pyo3(signature = (name = None))]
    fn new(name: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        find(name).map(Self)
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

/// Returns the name of a device, such as `cuda:0`, for whatever names one: a `Device`, a name, or a device of torch,
/// JAX or CuPy. `None` is the host.
#[pyfunction]
pub(crate) fn device_name(device: Option<&Bound<'_, PyAny>>) -> PyResult<String> {
    Ok(find(device)?.to_string())
}

/// Finds a device as [`device_name`] names it.
pub(crate) fn find(device: Option<&Bound<'_, PyAny>>) -> PyResult<crosshandle::Device> {
    let Some(device) = device else {
        return named("host");
    };
    if let Ok(device) = device.cast::<Device>() {
        return Ok(device.get().0.clone());
    }
    if let Ok(name) = device.extract::<String>() {
        return named(&name);
    }
    let name = name_elsewhere(device)?.ok_or_else(|| {
        PyTypeError::new_err(format!(
            "a device is given as a Device or by its name, such as \"cuda:0\": {device}"
        ))
    })?;
    named(&name)
}

fn named(name: &str) -> PyResult<crosshandle::Device> {
    // Array libraries call the host so.
    let name = match name {
        "cpu" | "cpu:0" => "host",
        name => name,
    };
    let found: Result<_> = crosshandle::Device::find(name).map_err(Into::into);
    Ok(found?)
}

/// Returns the name of a device of another library; `None` if the object is no such device.
fn name_elsewhere(device: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let text = |attribute: &str| -> PyResult<Option<String>> {
        let found = device.getattr_opt(attribute)?;
        Ok(found.and_then(|found| found.extract().ok()))
    };
    let number = |attribute: &str| -> PyResult<Option<usize>> {
        let found = device.getattr_opt(attribute)?;
        Ok(found.and_then(|found| found.extract().ok()))
    };
    // torch has `type` and `index`, JAX `platform` and `id`, CuPy `id` alone.
    let kind = match text("type")? {
        Some(kind) => Some(kind),
        None => text("platform")?,
    };
    let module = device.get_type().getattr_opt("__module__")?;
    let module: Option<String> = module.and_then(|module| module.extract().ok());
    let is_cupy = module.is_some_and(|module| module.starts_with("cupy"));
    let index = match number("index")? {
        Some(index) => Some(index),
        None => number("id")?,
    };
    Ok(match kind.as_deref() {
        Some("cpu") => Some("host".into()),
        Some("cuda" | "gpu") => {
            let index = match index {
                Some(index) => index,
                // torch means its current device.
                None => device
                    .py()
                    .import("torch")?
                    .getattr("cuda")?
                    .call_method0("current_device")?
                    .extract()?,
            };
            Some(format!("cuda:{index}"))
        }
        Some("xpu") => Some(format!("level_zero:{}", index.unwrap_or(0))),
        None if is_cupy => index.map(|index| format!("cuda:{index}")),
        _ => None,
    })
}
