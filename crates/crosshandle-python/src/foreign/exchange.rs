//! Exchanges arrays with torch through DLPack's table of C functions, without calling Python code.
//! See <https://dmlc.github.io/dlpack/latest/python_spec.html>. torch has such a table since
//! version 2.10. `array/exchange.rs` provides the table for `crosshandle.Array`.

use super::capsule;
use super::description::{Foreign, Place};
use crate::array::dlpack::{self, Tensor};
use crate::array::exchange::{Functions, Header, NAME};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use std::mem::MaybeUninit;

/// Describes a torch tensor through the C functions of torch's tensor class.
///
/// Returns `None` if torch provides no function table in a supported version, or if its function
/// rejects the tensor. `owner` is the object that keeps the bytes alive.
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
    // SAFETY: `array` is an instance of the tensor class or of a subclass, `tensor` can be written,
    // and the caller holds the interpreter's lock.
    let failed = unsafe { function(array.as_ptr().cast(), tensor.as_mut_ptr()) } != 0;
    if failed {
        drop(PyErr::take(py));
        return Ok(None);
    }
    // SAFETY: the memory was zeroed, and zeros are a valid `Tensor`. The function has filled in the
    // fields.
    let tensor = unsafe { tensor.assume_init() };
    let Ok(place) = Place::from_dlpack(tensor.device_type, tensor.device_id) else {
        return Ok(None);
    };
    // SAFETY: `array` keeps the sizes and strides that the tensor points to, and it is borrowed
    // during this call.
    let described = unsafe { capsule::of_tensor(&tensor, place, false, owner.clone_ref(py)) };
    Ok(described.ok())
}

/// Returns whether an object is truly an instance of a class, with the memory layout of that class.
///
/// `isinstance` is not enough. It is also true for a proxy object that only claims the class, and
/// torch's C functions would read the proxy's memory as a tensor.
fn is_made_of(array: &Bound<'_, PyAny>, class: &Bound<'_, PyAny>) -> bool {
    let Ok(class) = class.cast::<PyType>() else {
        return false;
    };
    // SAFETY: both pointers are to live objects, and the second one is a type.
    unsafe { ffi::PyObject_TypeCheck(array.as_ptr(), class.as_type_ptr()) != 0 }
}

/// Returns the DLPack function table that torch's tensor class provides, or `None`. Searches for
/// the table only once per process.
fn known(class: &Bound<'_, PyAny>) -> PyResult<Option<&'static Functions>> {
    static KNOWN: PyOnceLock<Option<&'static Functions>> = PyOnceLock::new();
    Ok(*KNOWN.get_or_try_init(class.py(), || find(class))?)
}

/// Creates a torch tensor from a DLPack tensor that `make` creates. Does not wait for any stream.
/// Returns `None` if torch provides no function table in a supported version. The tensor's strides
/// must not be negative, because torch does not support that.
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
    // SAFETY: `make` returns a valid tensor, and the function takes ownership of it even if it
    // fails. `made` can be written, and the caller holds the interpreter's lock.
    let failed = unsafe { convert(make()?, &raw mut made) } != 0;
    if failed {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: `made` is a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, made.cast()).map(Some) }
}

/// Returns a class's DLPack function table, or `None` if the class provides none in a supported
/// version.
fn find(class: &Bound<'_, PyAny>) -> PyResult<Option<&'static Functions>> {
    let Some(capsule) = class.getattr_opt("__dlpack_c_exchange_api__")? else {
        return Ok(None);
    };
    let name = NAME.as_ptr();
    // SAFETY: `PyCapsule_IsValid` accepts any object.
    if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name) } != 1 {
        return Ok(None);
    }
    // SAFETY: `PyCapsule_IsValid` has shown that this is a capsule with that name.
    let mut found: *const Header =
        unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name) }.cast();
    // SAFETY: DLPack requires that a capsule with this name points to a table that lives as long as
    // the process. The same holds for each table that the header links to. The last link is null.
    while let Some(header) = unsafe { found.as_ref() } {
        if header.version[0] == dlpack::VERSION[0] {
            // SAFETY: DLPack requires that a table with this major version starts with the fields
            // of `Functions`.
            return Ok(Some(unsafe { &*found.cast::<Functions>() }));
        }
        found = header.before;
    }
    Ok(None)
}
