//! DLPack's table of C functions, by which a library describes its arrays without a call of Python:
//! <https://dmlc.github.io/dlpack/latest/python_spec.html>. torch has it from 2.10 on.

use super::capsule;
use super::description::{Foreign, Place};
use crate::array::dlpack::{self, Tensor};
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
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
    tensor_from_object: Option<unsafe extern "C" fn(*mut c_void, *mut Tensor) -> c_int>,
    current_stream: *const c_void,
}

/// The function that describes the arrays of a class.
#[derive(Clone, Copy)]
pub(super) struct Table {
    describe: unsafe extern "C" fn(*mut c_void, *mut Tensor) -> c_int,
}

/// Returns the table of torch's class of tensors, which is looked for once; `None` if it has none of a version that
/// this module knows.
pub(super) fn table_of(class: &Bound<'_, PyAny>) -> PyResult<Option<Table>> {
    static KNOWN: PyOnceLock<Option<Table>> = PyOnceLock::new();
    KNOWN.get_or_try_init(class.py(), || find(class)).copied()
}

fn find(class: &Bound<'_, PyAny>) -> PyResult<Option<Table>> {
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
            return Ok(functions
                .tensor_from_object
                .map(|describe| Table { describe }));
        }
        found = header.before;
    }
    Ok(None)
}

impl Table {
    /// Describes an array of the table's class. `owner` is what its bytes live as long as.
    pub(super) fn describe(self, array: &Bound<'_, PyAny>, owner: Py<PyAny>) -> PyResult<Foreign> {
        let mut tensor = MaybeUninit::<Tensor>::zeroed();
        // SAFETY: the object is one of the class, or of one derived from it, and the caller has the interpreter.
        let failed = unsafe { (self.describe)(array.as_ptr().cast(), tensor.as_mut_ptr()) } != 0;
        if failed {
            return Err(PyErr::take(array.py()).unwrap_or_else(|| {
                PyRuntimeError::new_err(
                    "the library did not say why its array has no form in DLPack",
                )
            }));
        }
        // SAFETY: the function has filled it in, and zeros are a tensor too.
        let tensor = unsafe { tensor.assume_init() };
        let place = Place::from_dlpack(tensor.device_type, tensor.device_id)?;
        // SAFETY: the array, which is borrowed, keeps its sizes.
        unsafe { capsule::of_tensor(&tensor, place, false, owner) }
    }
}
