//! Describes torch tensors without DLPack capsules. A tree may contain hundreds of tensors, and
//! capsules would be ten times slower.

use super::description::{Foreign, Place};
use super::exchange;
use crate::array::Dtype;
use crate::array::arguments::Sizes;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString};

/// Returns torch's tensor class, or `None` if the program has not imported torch.
fn class(py: Python<'_>) -> PyResult<Option<&Bound<'_, PyAny>>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if let Some(class) = CLASS.get(py) {
        return Ok(Some(class.bind(py)));
    }
    static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let modules = MODULES.get_or_try_init(py, || {
        let modules = py.import("sys")?.getattr("modules")?;
        PyResult::Ok(modules.cast_into::<PyDict>()?.unbind())
    })?;
    let Some(torch) = modules.bind(py).get_item("torch")? else {
        return Ok(None);
    };
    // The module torch does not have its tensor class yet while its import is in progress.
    let Some(class) = torch.getattr_opt("Tensor")? else {
        return Ok(None);
    };
    Ok(Some(CLASS.get_or_init(py, || class.unbind()).bind(py)))
}

/// Describes a tensor. Returns `None` if the object is not a torch tensor.
pub(super) fn describe(value: &Bound<'_, PyAny>) -> PyResult<Option<Foreign>> {
    let Some(class) = class(value.py())? else {
        return Ok(None);
    };
    if !value.is_instance(class)? {
        return Ok(None);
    }
    let py = value.py();
    let is_true = |name: &Bound<'_, PyString>| value.call_method0(name)?.is_truthy();
    // DLPack cannot express a negated or a conjugated tensor.
    if is_true(intern!(py, "is_neg"))? || is_true(intern!(py, "is_conj"))? {
        return Err(PyValueError::new_err(
            "this tensor is a view that torch negates or conjugates when it reads: share \
             tensor.resolve_conj().resolve_neg()",
        ));
    }
    // Hold the tensor's current storage, not the tensor: the program may assign another storage to
    // the tensor later.
    let owner = value.call_method0(intern!(py, "untyped_storage"))?.unbind();
    let described = exchange::describe(value, class, &owner)?;
    described
        .map_or_else(|| by_attributes(value, owner), Ok)
        .map(Some)
}

/// Describes a tensor by its Python attributes.
///
/// This path is used for torch before 2.10, which has no DLPack function table. It is also used for
/// tensors that the table's functions reject, and for proxy objects that claim to be tensors.
fn by_attributes(tensor: &Bound<'_, PyAny>, owner: Py<PyAny>) -> PyResult<Foreign> {
    let place = if tensor.getattr("is_cuda")?.is_truthy()? {
        let number: u32 = tensor.call_method0("get_device")?.extract()?;
        Place::Cuda(number)
    } else {
        let kind: String = tensor.getattr("device")?.getattr("type")?.extract()?;
        if kind != "cpu" {
            return Err(PyTypeError::new_err(format!(
                "tensors on devices of torch's type {kind:?} cannot be shared"
            )));
        }
        Place::Host
    };
    let dtype = Dtype::of(&tensor.getattr("dtype")?)?;
    let address: usize = tensor.call_method0("data_ptr")?.extract()?;
    let Sizes(shape) = tensor.getattr("shape")?.extract::<Sizes<usize>>()?;
    let size = dtype.bytes() as isize;
    let Sizes(mut strides) = tensor.call_method0("stride")?.extract::<Sizes<isize>>()?;
    for stride in &mut strides {
        *stride = stride.saturating_mul(size);
    }
    Foreign::new(place, address, dtype, shape, Some(strides), false, owner)
}
