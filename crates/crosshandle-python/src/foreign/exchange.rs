//! Arrays of libraries that have DLPack's table of C functions, through which arrays are exchanged
//! without calling Python. See <https://dmlc.github.io/dlpack/latest/python_spec.html>. torch has
//! such a table since version 2.10. The table for this module's arrays is in `array/exchange.rs`.

use super::capsule;
use super::description::{Foreign, Place};
use crate::array::dlpack::{self, Tensor};
use crate::array::exchange::{Functions, Header, NAME};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use std::mem::MaybeUninit;

/// Describes an instance of torch's tensor class.
///
/// Returns `None` if the class has no table of a supported version, or if the table's function
/// refuses the array. `owner` is the object that keeps the bytes alive.
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
    // SAFETY: the object is an instance of the class or of a subclass, and the caller holds the
    // interpreter's lock.
    let failed = unsafe { function(array.as_ptr().cast(), tensor.as_mut_ptr()) } != 0;
    if failed {
        drop(PyErr::take(py));
        return Ok(None);
    }
    // SAFETY: the function has filled it in, and zeros are a valid tensor too.
    let tensor = unsafe { tensor.assume_init() };
    let Ok(place) = Place::from_dlpack(tensor.device_type, tensor.device_id) else {
        return Ok(None);
    };
    // SAFETY: the array, which is borrowed, keeps its sizes.
    let described = unsafe { capsule::of_tensor(&tensor, place, false, owner.clone_ref(py)) };
    Ok(described.ok())
}

/// Returns whether an object has the memory layout of a class's instances.
///
/// `isinstance` is not enough: it is also true for a proxy that only claims the class, and the
/// library's functions would read the proxy's memory as a tensor.
fn is_made_of(array: &Bound<'_, PyAny>, class: &Bound<'_, PyAny>) -> bool {
    let Ok(class) = class.cast::<PyType>() else {
        return false;
    };
    // SAFETY: both the object and the type are alive.
    unsafe { ffi::PyObject_TypeCheck(array.as_ptr(), class.as_type_ptr()) != 0 }
}

/// Returns the table of torch's tensor class. Searches for it once.
fn known(class: &Bound<'_, PyAny>) -> PyResult<Option<&'static Functions>> {
    static KNOWN: PyOnceLock<Option<&'static Functions>> = PyOnceLock::new();
    Ok(*KNOWN.get_or_try_init(class.py(), || find(class))?)
}

/// Makes a torch tensor from a managed tensor. Does not wait for any stream. Returns `None` if
/// torch has no table of a supported version. The strides of the array must be acceptable to torch.
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
    // SAFETY: the function takes the new tensor, whatever it returns. The caller holds the
    // interpreter's lock.
    let failed = unsafe { convert(make()?, &raw mut made) } != 0;
    if failed {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: the function has returned a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, made.cast()).map(Some) }
}

/// Returns the table of a class, or `None` if it has no table of a supported version.
fn find(class: &Bound<'_, PyAny>) -> PyResult<Option<&'static Functions>> {
    let Some(capsule) = class.getattr_opt("__dlpack_c_exchange_api__")? else {
        return Ok(None);
    };
    let name = NAME.as_ptr();
    // SAFETY: the call accepts any object.
    if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name) } != 1 {
        return Ok(None);
    }
    // SAFETY: the check above shows that this is a capsule of that name.
    let mut found: *const Header =
        unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name) }.cast();
    // SAFETY: a capsule of this name contains a table that lives as long as the process. The same
    // is true for each table that it links to.
    while let Some(header) = unsafe { found.as_ref() } {
        if header.version[0] == dlpack::VERSION[0] {
            // SAFETY: a table of this version has the declared layout.
            return Ok(Some(unsafe { &*found.cast::<Functions>() }));
        }
        found = header.before;
    }
    Ok(None)
}
