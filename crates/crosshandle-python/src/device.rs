//! The Python class `Device`.

use crate::error::Result;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// A device: host memory, or a GPU.
///
/// `Device("host")` (also `"cpu"`), `Device("cuda:0")` (also `"cuda"`) and `Device("level_zero:0")`
/// name a device. The argument may also be a torch, JAX or CuPy device: `Device(tensor.device)`. If
/// the device does not exist, the constructor raises `NoDeviceError`. Its message says which device
/// was requested and where the library searched.
///
/// >>> crosshandle.Device("cpu").name
/// 'host:0'
/// >>> "host:0" in [device.name for device in crosshandle.Device.all()]
/// True
#[pyclass(frozen, module = "crosshandle")]
pub(crate) struct Device(pub(crate) crosshandle::Device);

#[pymethods]
impl Device {
    #[new]
    #[pyo3(signature = (name = None))]
    fn new(name: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        find(name).map(Self)
    }

    /// Returns all devices of this machine whose driver is installed.
    #[staticmethod]
    fn all(py: Python<'_>) -> Vec<Self> {
        let all = py.detach(crosshandle::Device::all);
        all.into_iter().map(Self).collect()
    }

    /// The name of the device, such as `cuda:0`. `Device(name)` accepts it.
    #[getter]
    fn name(&self) -> String {
        self.0.to_string()
    }

    /// The product name that the driver reports for the device.
    #[getter]
    fn description(&self) -> &str {
        &self.0.info().name
    }

    /// The backend of the device: `host`, `cuda` or `level_zero`.
    #[getter]
    fn backend(&self) -> String {
        self.0.info().backend.to_string()
    }

    /// The index of the device among the devices of its backend. It applies to this process only.
    #[getter]
    fn index(&self) -> usize {
        self.0.info().index
    }

    /// The UUID of the device. Every process on this machine sees the same UUID.
    #[getter]
    fn uuid(&self) -> String {
        self.0.info().uuid.to_string()
    }

    /// The size of the device's memory, in bytes.
    #[getter]
    fn total_memory(&self) -> u64 {
        self.0.info().total_memory
    }

    /// The device's free memory in bytes, or `None` if the driver does not report it.
    #[getter]
    fn free_memory(&self) -> Option<u64> {
        self.0.free_memory()
    }

    /// The device's page size in bytes. Sizes of physical memory and of mappings must be multiples
    /// of it.
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

/// Returns the name of a device, such as `cuda:0`. The argument is a `Device`, a name, or a device
/// object from torch, JAX or CuPy. `None` means the host.
#[pyfunction]
pub(crate) fn device_name(device: Option<&Bound<'_, PyAny>>) -> PyResult<String> {
    Ok(find(device)?.to_string())
}

/// Finds a device. Accepts the same arguments as [`device_name`].
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
    // Array libraries use the name `cpu` for the host.
    let name = match name {
        "cpu" | "cpu:0" => "host",
        name => name,
    };
    let found: Result<_> = crosshandle::Device::find(name).map_err(Into::into);
    Ok(found?)
}

/// Returns this library's name for a torch, JAX or CuPy device. Returns `None` for any other
/// object.
fn name_elsewhere(device: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let text = |attribute: &str| -> PyResult<Option<String>> {
        let found = device.getattr_opt(attribute)?;
        Ok(found.and_then(|found| found.extract().ok()))
    };
    let number = |attribute: &str| -> PyResult<Option<usize>> {
        let found = device.getattr_opt(attribute)?;
        Ok(found.and_then(|found| found.extract().ok()))
    };
    // A torch device has the attributes `type` and `index`. A JAX device has `platform` and `id`. A
    // CuPy device has only `id`.
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
                // A torch device without an index means torch's current device.
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
