//! torch's tensors, by their own attributes: a tree has hundreds, and DLPack takes ten times as long.

use super::description::{Foreign, Place};
use crate::array::Dtype;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Returns torch's class of tensors, if a program has imported torch.
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
    // While torch is being imported it has none.
    let Some(class) = torch.getattr_opt("Tensor")? else {
        return Ok(None);
    };
    Ok(Some(CLASS.get_or_init(py, || class.unbind()).bind(py)))
}

/// Returns what a tensor's type is. The objects of types are never freed.
fn dtype(tensor: &Bound<'_, PyAny>) -> PyResult<Dtype> {
    static KNOWN: Mutex<Option<HashMap<usize, Dtype>>> = Mutex::new(None);
    let object = tensor.getattr("dtype")?;
    let place = object.as_ptr().addr();
    let found = {
        let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().and_then(|known| known.get(&place)).copied()
    };
    if let Some(dtype) = found {
        return Ok(dtype);
    }
    let dtype = Dtype::of(&object)?;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.get_or_insert_default().insert(place, dtype);
    Ok(dtype)
}

/// Describes a tensor; `None` if it is none of torch's.
pub(super) fn describe(value: &Bound<'_, PyAny>) -> PyResult<Option<Foreign>> {
    let py = value.py();
    let Some(class) = class(py)? else {
        return Ok(None);
    };
    if !value.is_instance(class)? {
        return Ok(None);
    }
    let place = if value.getattr("is_cuda")?.is_truthy()? {
        let number: u32 = value.call_method0("get_device")?.extract()?;
        Place::Cuda(number)
    } else {
        let kind: String = value.getattr("device")?.getattr("type")?.extract()?;
        if kind != "cpu" {
            return Err(PyTypeError::new_err(format!(
                "tensors on devices of torch's type {kind:?} cannot be shared"
            )));
        }
        Place::Host
    };
    let dtype = dtype(value)?;
    if value.call_method0("is_neg")?.is_truthy()?
        || (dtype.is_complex() && value.call_method0("is_conj")?.is_truthy()?)
    {
        return Err(PyValueError::new_err(
            "this tensor is a view that torch negates or conjugates when it reads: share \
             tensor.resolve_conj().resolve_neg()",
        ));
    }
    let address: usize = value.call_method0("data_ptr")?.extract()?;
    let shape: Vec<usize> = value.getattr("shape")?.extract()?;
    let size = dtype.bytes() as isize;
    let mut strides: Vec<isize> = value.call_method0("stride")?.extract()?;
    strides.iter_mut().for_each(|stride| *stride *= size);
    // The tensor may be given another storage; this one is what the bytes live as long as.
    let owner = value.call_method0("untyped_storage")?.unbind();
    Foreign::new(place, address, dtype, shape, Some(strides), false, owner).map(Some)
}
