//! DLPack's table of C functions for this module's arrays, `Array.__dlpack_c_exchange_api__`.
//!
//! See <https://dmlc.github.io/dlpack/latest/python_spec.html>. `foreign/exchange.rs` uses the
//! tables of other libraries.
//!
//! The functions do not get a stream from the caller, so they wait on the host until an array's
//! bytes are ready.

use super::dlpack::{self, Tensor, Versioned};
use super::{Array, Dtype, MAX_DIMENSIONS};
use crate::context::default_context;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// The name of a capsule that contains a table.
pub(crate) const NAME: &CStr = c"dlpack_exchange_api";

/// `DLPackExchangeAPIHeader`.
#[repr(C)]
pub(crate) struct Header {
    pub(crate) version: [u32; 2],
    pub(crate) before: *const Header,
}

/// `DLPackExchangeAPI`.
#[repr(C)]
pub(crate) struct Functions {
    header: Header,
    /// Makes a tensor in new memory, with the properties of another tensor.
    allocate: Option<Allocate>,
    /// Makes a tensor that keeps an array's memory.
    managed_from_object: Option<unsafe extern "C" fn(*mut c_void, *mut *mut Versioned) -> c_int>,
    /// Makes an array that owns a tensor. Does not wait for any stream.
    pub(crate) managed_to_object:
        Option<unsafe extern "C" fn(*mut Versioned, *mut *mut c_void) -> c_int>,
    /// Fills in a tensor that is valid as long as the array lives. Does not wait for any stream.
    /// Returns -1 and sets an exception on failure, like the other functions of the table.
    pub(crate) tensor_from_object: Option<unsafe extern "C" fn(*mut c_void, *mut Tensor) -> c_int>,
    current_stream: Option<unsafe extern "C" fn(c_int, i32, *mut *mut c_void) -> c_int>,
}

type Allocate = unsafe extern "C" fn(
    *mut Tensor,
    *mut *mut Versioned,
    *mut c_void,
    Option<unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char)>,
) -> c_int;

// SAFETY: a table never changes. It only points to functions and other tables, which live as long
// as the process.
unsafe impl Sync for Functions {}
// SAFETY: a table never changes, and only points to data that lives as long as the process.
unsafe impl Send for Functions {}

/// The table of this module's arrays.
static TABLE: Functions = Functions {
    header: Header {
        version: [1, 3],
        before: ptr::null(),
    },
    allocate: Some(allocate),
    managed_from_object: Some(managed_from_object),
    managed_to_object: Some(managed_to_object),
    tensor_from_object: Some(tensor_from_object),
    current_stream: Some(current_stream),
};

/// Returns a capsule with the table.
pub(super) fn capsule(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let table = (&raw const TABLE).cast_mut().cast();
    // SAFETY: table and name live as long as the process.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(table, NAME.as_ptr(), None)) }
}

/// Runs a function that C code has called. On an error or a panic, sets a Python exception and
/// returns -1.
fn guarded(call: impl FnOnce(Python<'_>) -> PyResult<()>) -> c_int {
    Python::attach(|py| {
        let error = match catch_unwind(AssertUnwindSafe(|| call(py))) {
            Ok(Ok(())) => return 0,
            Ok(Err(error)) => error,
            Err(_) => {
                PyBufferError::new_err("a bug in crosshandle: its DLPack function has panicked")
            }
        };
        error.restore(py);
        -1
    })
}

/// Converts a borrowed object to an array. Fails if the object is not an array.
///
/// # Safety
/// The caller must ensure that `object` is a borrowed reference.
unsafe fn array_of<'py>(py: Python<'py>, object: *mut c_void) -> PyResult<Bound<'py, Array>> {
    if object.is_null() {
        return Err(PyTypeError::new_err("there is no array"));
    }
    // SAFETY: the caller upholds this function's contract.
    let object = unsafe { Bound::from_borrowed_ptr(py, object.cast()) };
    let array = object.cast_into::<Array>()?;
    array.get().wait_ready(py, None)?;
    Ok(array)
}

/// Makes a tensor that keeps an array's memory alive.
///
/// # Safety
/// The caller must ensure that `object` is a borrowed reference, and that `to` can be written.
unsafe extern "C" fn managed_from_object(object: *mut c_void, to: *mut *mut Versioned) -> c_int {
    guarded(|py| {
        // SAFETY: the caller upholds this function's contract.
        let array = unsafe { array_of(py, object)? };
        let made = dlpack::managed(array.get(), array.get().read_only)?;
        // SAFETY: the caller upholds this function's contract.
        unsafe { to.write(made) };
        Ok(())
    })
}

/// Fills in a tensor that is valid as long as the array lives.
///
/// # Safety
/// The caller must ensure that `object` is a borrowed reference, and that `to` can be written.
unsafe extern "C" fn tensor_from_object(object: *mut c_void, to: *mut Tensor) -> c_int {
    guarded(|py| {
        // SAFETY: the caller upholds this function's contract.
        let array = unsafe { array_of(py, object)? };
        // The tensor points into the array, so the caller must keep the array alive while it uses
        // the tensor.
        let tensor = dlpack::borrowed(array.get())?;
        // SAFETY: the caller upholds this function's contract.
        unsafe { to.write(tensor) };
        Ok(())
    })
}

/// Makes an array that owns a tensor.
///
/// # Safety
/// The caller must own `tensor`, and ensure that `to` can be written.
unsafe extern "C" fn managed_to_object(tensor: *mut Versioned, to: *mut *mut c_void) -> c_int {
    guarded(|py| {
        if tensor.is_null() {
            return Err(PyTypeError::new_err("there is no tensor"));
        }
        // SAFETY: the caller owns the tensor, and the capsule takes it.
        let capsule = unsafe { dlpack::wrap_foreign(py, tensor)? };
        // SAFETY: this function holds the capsule, which keeps the tensor alive.
        let device = unsafe { ((*tensor).tensor.device_type, (*tensor).tensor.device_id) };
        let holder = Bound::new(py, Holder(capsule.unbind(), device))?;
        let adopt = py.import("crosshandle._creating")?.getattr("_adopted")?;
        let array = adopt.call1((holder,))?;
        // SAFETY: the caller upholds this function's contract.
        unsafe { to.write(array.into_ptr().cast()) };
        Ok(())
    })
}

/// A tensor that was passed to a C function, as an object with DLPack's methods.
#[pyclass(frozen)]
struct Holder(Py<PyAny>, (i32, i32));

#[pymethods]
impl Holder {
    #[pyo3(signature = (**_options))]
    fn __dlpack__(&self, py: Python<'_>, _options: Option<&Bound<'_, PyAny>>) -> Py<PyAny> {
        self.0.clone_ref(py)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        self.1
    }
}

/// Makes a tensor in new memory, with the properties of the tensor `like`.
///
/// # Safety
/// The caller must ensure that `like` is a tensor whose shape has an element for each dimension,
/// that `to` can be written, and that `fail` accepts `context` and two texts.
unsafe extern "C" fn allocate(
    like: *mut Tensor,
    to: *mut *mut Versioned,
    context: *mut c_void,
    fail: Option<unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char)>,
) -> c_int {
    let made = || {
        Python::attach(|py| {
            // SAFETY: the caller upholds this function's contract.
            let Some(like) = (unsafe { like.as_ref() }) else {
                return Err(PyTypeError::new_err("there is no tensor"));
            };
            let dimensions = usize::try_from(like.ndim).unwrap_or(usize::MAX);
            if dimensions > MAX_DIMENSIONS || (dimensions > 0 && like.shape.is_null()) {
                return Err(PyTypeError::new_err("the tensor has too many dimensions"));
            }
            let dtype = Dtype::from_code(like.code, like.bits).filter(|_| like.elements == 1);
            let dtype = dtype.ok_or_else(|| PyTypeError::new_err("no array has such elements"))?;
            let mut shape = Vec::with_capacity(dimensions);
            for place in 0..dimensions {
                // SAFETY: the shape has an element for each dimension.
                let size = unsafe { *like.shape.add(place) };
                shape.push(usize::try_from(size).map_err(|_| {
                    PyTypeError::new_err("the tensor has a dimension of negative size")
                })?);
            }
            let device = dlpack::device_name(like.device_type, like.device_id)?;
            let device = PyString::new(py, &device).into_any();
            let own = default_context(py, Some(&device))?;
            dlpack::managed(&own.get().empty_of(py, dtype, shape)?, false)
        })
    };
    match catch_unwind(AssertUnwindSafe(made)) {
        Ok(Ok(made)) => {
            // SAFETY: the caller upholds this function's contract.
            unsafe { to.write(made) };
            0
        }
        _ => {
            if let Some(fail) = fail {
                let (kind, text) = (
                    c"RuntimeError",
                    c"crosshandle cannot allocate such a tensor",
                );
                // SAFETY: the caller upholds this function's contract.
                unsafe { fail(context, kind.as_ptr(), text.as_ptr()) };
            }
            -1
        }
    }
}

/// Reports that arrays of this module have no current stream.
///
/// # Safety
/// The caller must ensure that `to` can be written.
unsafe extern "C" fn current_stream(_kind: c_int, _number: i32, to: *mut *mut c_void) -> c_int {
    // SAFETY: the caller upholds this function's contract. This module has no stream of its own, so
    // it returns the default one.
    unsafe { to.write(ptr::null_mut()) };
    0
}
