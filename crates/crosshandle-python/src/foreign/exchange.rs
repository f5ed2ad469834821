//! DLPack's table of C functions, by which a library describes its arrays without a call of Python:
//! <https://dmlc.github.io/dlpack/latest/python_spec.html>. torch has it from 2.10 on.

use super::capsule;
use super::description::{Foreign, Place};
use crate::array::dlpack::{self, Tensor};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

/// `DLPackExchangeAPIHeader`.
#[repr(C)]
struct Header {
    version: [u32; 2],
    before: *const Header,
}

/// `DLPackExchangeAPI`.
#[repr(C)]
struct Functions {
    header: Header,
    allocate: *const c_void,
    managed_from_object: *const c_void,
    managed_to_object: *const c_void,
    /// Fills in a tensor that is good until the interpreter goes on, and that waits for no stream. Returns -1 with
    /// an exception set.
    tensor_from_object: Option<Describe>,
    current_stream: *const c_void,
}

/// The function that describes the arrays of a class.
type Describe = unsafe extern "C" fn(*mut c_void, *mut Tensor) -> c_int;

/// Describes an array of torch's class of tensors; `None` if the class has no table of a version that this module
/// knows, or its function refuses the array. `owner` is what the bytes live as long as.
pub(super) fn describe(
    array: &Bound<'_, PyAny>,
    class: &Bound<'_, PyAny>,
    owner: &Py<PyAny>,
) -> PyResult<Option<Foreign>> {
    // Looked for once.
    static KNOWN: PyOnceLock<Option<Describe>> = PyOnceLock::new();
    let py = array.py();
    let Some(function) = *KNOWN.get_or_try_init(py, || find(class))? else {
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

/// Returns the function in the table of a class.
fn find(class: &Bound<'_, PyAny>) -> PyResult<Option<Describe>> {
    let Some(capsule) = class.getattr_opt("__dlpack_c_exchange_api__")? else {
        return Ok(None);
    };
    let name = c"dlpack_exchange_api".as_ptr();
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
            let functions = unsafe { &*found.cast::<Functions>() };
            return Ok(functions.tensor_from_object);
        }
        found = header.before;
    }
    Ok(None)
}
