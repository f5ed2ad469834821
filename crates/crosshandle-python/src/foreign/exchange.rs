//! DLPack's table of C functions, by which libraries exchange arrays without a call of Python:
//! <https://dmlc.github.io/dlpack/latest/python_spec.html>. torch has it from 2.10 on. The table of this module's arrays
//! is in `array/exchange.rs`.

use super::capsule;
use super::description::{Foreign, Place};
use crate::array::dlpack::{self, Tensor};
use crate::array::exchange::{Functions, Header, NAME};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use std::mem::MaybeUninit;

/// Describes an array of torch's class of tensors; `None` if the class has no table of a version that this module
/// knows, or its function refuses the array. `owner` is what the bytes live as long as.
pub(super) fn describe(
    array: &Bound<'_, PyAny>,
    class: &Bound<'_, PyAny>,
    owner: &Py<PyAny>,
) -> PyResult<Option<Foreign>> {
    let py = array.py();
    let Some(function) = known(class)?.and_then(|functions| functions.tensor_from_object) else {
        return Ok(None);
    };
    if !is_made_of(array, class) {
        return Ok(None);
    }
    let mut tensor = MaybeUninit::<Tensor>::zeroed();
    // SAFETY: the object is one of the class, or of one derived from it, and the caller has the interpreter.
    let failed = unsafe { function(array.as_ptr().cast(), tensor.as_mut_ptr()) } != 0;
    if failed {
        drop(PyErr::take(py));
        return Ok(None);
    }
    // SAFETY: the function has filled it in, and zeros are a tensor too.
    let tensor = unsafe { tensor.assume_init() };
    let Ok(place) = Place::from_dlpack(tensor.device_type, tensor.device_id) else {
        return Ok(None);
    };
    // SAFETY: the array, which is borrowed, keeps its sizes.
    let described = unsafe { capsule::of_tensor(&tensor, place, false, owner.clone_ref(py)) };
    Ok(described.ok())
}

/// Returns whether an object is laid out as those of a class are. `isinstance` also believes one that only says so,
/// such as a proxy, which the library's functions would read as if it were an array.
fn is_made_of(array: &Bound<'_, PyAny>, class: &Bound<'_, PyAny>) -> bool {
    let Ok(class) = class.cast::<PyType>() else {
        return false;
    };
    // SAFETY: an object and a type, both alive.
    unsafe { ffi::PyObject_TypeCheck(array.as_ptr(), class.as_type_ptr()) != 0 }
}

/// Returns the table of torch's class of tensors, which is looked for once.
fn known(class: &Bound<'_, PyAny>) -> PyResult<Option<&'static Functions>> {
    static KNOWN: PyOnceLock<Option<&'static Functions>> = PyOnceLock::new();
    Ok(*KNOWN.get_or_try_init(class.py(), || find(class))?)
}

/// Makes a tensor of torch, which waits for no stream; `None` if torch has no table of a version that this module knows.
/// The array is without strides that torch refuses.
pub(crate) fn torch_tensor<'py>(
    py: Python<'py>,
    make: impl FnOnce() -> PyResult<*mut dlpack::Versioned>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    static CONVERT: PyOnceLock<Option<&'static Functions>> = PyOnceLock::new();
    let functions = CONVERT.get_or_try_init(py, || {
        let class = py.import("torch")?.getattr("Tensor")?;
        known(&class)
    })?;
    let Some(convert) = functions.and_then(|functions| functions.managed_to_object) else {
        return Ok(None);
    };
    let mut made = std::ptr::null_mut();
    // SAFETY: the tensor is a new one, which the function takes over whatever it returns; the caller has the interpreter.
    let failed = unsafe { convert(make()?, &raw mut made) } != 0;
    if failed {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: the function has returned a new reference, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, made.cast()).map(Some) }
}

/// Returns the table of a class.
fn find(class: &Bound<'_, PyAny>) -> PyResult<Option<&'static Functions>> {
    let Some(capsule) = class.getattr_opt("__dlpack_c_exchange_api__")? else {
        return Ok(None);
    };
    let name = NAME.as_ptr();
    // SAFETY: the call takes any object.
    if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name) } != 1 {
        return Ok(None);
    }
    // SAFETY: it is a capsule of this name.
    let mut found: *const Header =
        unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name) }.cast();
    // SAFETY: a capsule of this name has a table that lives as long as the process, and so has each table the one
    // before it.
    while let Some(header) = unsafe { found.as_ref() } {
        if header.version[0] == dlpack::VERSION[0] {
            // SAFETY: the rest of a table of this version is as declared.
            return Ok(Some(unsafe { &*found.cast::<Functions>() }));
        }
        found = header.before;
    }
    Ok(None)
}
