//! DLPack's table of C functions for `crosshandle.Array`, which `Array.__dlpack_c_exchange_api__`
//! returns.
//!
//! See <https://dmlc.github.io/dlpack/latest/python_spec.html>. `foreign/exchange.rs` calls the
//! functions in torch's table.
//!
//! The caller does not pass a stream to these functions, so they wait on the host until an array's
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

/// The name of a capsule that points to a function table.
pub(crate) const NAME: &CStr = c"dlpack_exchange_api";

/// DLPack's structure `DLPackExchangeAPIHeader`, with a link to a table of an older version.
#[repr(C)]
pub(crate) struct Header {
    pub(crate) version: [u32; 2],
    pub(crate) before: *const Header,
}

/// DLPack's structure `DLPackExchangeAPI`, the table of functions.
#[repr(C)]
pub(crate) struct Functions {
    header: Header,
    /// Creates a tensor in new memory, with the shape, type and device of another tensor.
    allocate: Option<Allocate>,
    /// Creates a tensor that keeps an array's memory alive.
    managed_from_object: Option<unsafe extern "C" fn(*mut c_void, *mut *mut Versioned) -> c_int>,
    /// Creates an array that takes ownership of a tensor. Does not wait for any stream.
    pub(crate) managed_to_object:
        Option<unsafe extern "C" fn(*mut Versioned, *mut *mut c_void) -> c_int>,
    /// Fills in a tensor that borrows from an array and is valid as long as the array lives. Does
    /// not wait for any stream. Like the other functions in this table, returns -1 and sets a
    /// Python exception on failure.
    pub(crate) tensor_from_object: Option<unsafe extern "C" fn(*mut c_void, *mut Tensor) -> c_int>,
    current_stream: Option<unsafe extern "C" fn(c_int, i32, *mut *mut c_void) -> c_int>,
}

type Allocate = unsafe extern "C" fn(
    *mut Tensor,
    *mut *mut Versioned,
    *mut c_void,
    Option<unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char)>,
) -> c_int;

// SAFETY: a table never changes, so threads may read it at the same time. It points only to
// functions and other tables, which live as long as the process.
unsafe impl Sync for Functions {}
// SAFETY: a table is not tied to a thread. It points only to functions and other tables, which live
// as long as the process.
unsafe impl Send for Functions {}

/// The function table for `crosshandle.Array`.
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

/// Returns a capsule that points to [`TABLE`].
pub(super) fn capsule(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let table = (&raw const TABLE).cast_mut().cast();
    // SAFETY: the table and the name live as long as the process. `PyCapsule_New` returns a new
    // reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(table, NAME.as_ptr(), None)) }
}

/// Runs the body of a function that C code calls. Returns 0 on success. After an error or a panic,
/// sets a Python exception and returns -1.
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

/// Converts an object to an array, and waits until the array's bytes are ready. Fails if the object
/// is not a `crosshandle.Array`.
///
/// # Safety
/// The caller must ensure that `object` is null or a borrowed reference to a Python object.
unsafe fn array_of<'py>(py: Python<'py>, object: *mut c_void) -> PyResult<Bound<'py, Array>> {
    if object.is_null() {
        return Err(PyTypeError::new_err("there is no array"));
    }
    // SAFETY: `object` is not null, so the caller guarantees that it is a borrowed reference to a
    // Python object.
    let object = unsafe { Bound::from_borrowed_ptr(py, object.cast()) };
    let array = object.cast_into::<Array>()?;
    array.get().wait_ready(py, None)?;
    Ok(array)
}

/// The table's function `managed_from_object`: creates a tensor that keeps an array's memory alive.
///
/// # Safety
/// The caller must ensure that `object` is null or a borrowed reference to a Python object, and
/// that `to` can be written.
unsafe extern "C" fn managed_from_object(object: *mut c_void, to: *mut *mut Versioned) -> c_int {
    guarded(|py| {
        // SAFETY: the caller guarantees that `object` is null or a borrowed reference to a Python
        // object.
        let array = unsafe { array_of(py, object)? };
        let made = dlpack::managed(array.get(), array.get().read_only)?;
        // SAFETY: the caller guarantees that `to` can be written.
        unsafe { to.write(made) };
        Ok(())
    })
}

/// The table's function `tensor_from_object`: fills in a tensor that borrows from an array.
///
/// # Safety
/// The caller must ensure that `object` is null or a borrowed reference to a Python object, and
/// that `to` can be written.
unsafe extern "C" fn tensor_from_object(object: *mut c_void, to: *mut Tensor) -> c_int {
    guarded(|py| {
        // SAFETY: the caller guarantees that `object` is null or a borrowed reference to a Python
        // object.
        let array = unsafe { array_of(py, object)? };
        // DLPack requires the C caller to keep the array alive while it uses the tensor.
        let tensor = dlpack::borrowed(array.get())?;
        // SAFETY: the caller guarantees that `to` can be written.
        unsafe { to.write(tensor) };
        Ok(())
    })
}

/// The table's function `managed_to_object`: creates an array that takes ownership of a tensor.
///
/// # Safety
/// The caller must ensure that `tensor` is null or a managed tensor that the caller owns, and that
/// `to` can be written. Ownership passes to this function, even on failure.
unsafe extern "C" fn managed_to_object(tensor: *mut Versioned, to: *mut *mut c_void) -> c_int {
    guarded(|py| {
        if tensor.is_null() {
            return Err(PyTypeError::new_err("there is no tensor"));
        }
        // SAFETY: `tensor` is not null, so the caller guarantees that it owns the tensor. The
        // capsule takes ownership.
        let capsule = unsafe { dlpack::wrap_foreign(py, tensor)? };
        // SAFETY: `tensor` is valid, and this function holds the capsule that keeps it alive.
        let device = unsafe { ((*tensor).tensor.device_type, (*tensor).tensor.device_id) };
        let holder = Bound::new(py, Holder(capsule.unbind(), device))?;
        let adopt = py.import("crosshandle._creating")?.getattr("_adopted")?;
        let array = adopt.call1((holder,))?;
        // SAFETY: the caller guarantees that `to` can be written.
        unsafe { to.write(array.into_ptr().cast()) };
        Ok(())
    })
}

/// A Python object with DLPack's methods, for a tensor that C code has passed. The fields are the
/// tensor's capsule and its device.
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

/// The table's function `allocate`: creates a tensor in new memory, with the shape, type and device
/// of `like`.
///
/// # Safety
/// The caller must ensure that `like` is null or points to a tensor, whose `shape` is null or has a
/// number for each dimension. It must also ensure that `to` can be written, and that `fail` may be
/// called with `context` and two C strings.
unsafe extern "C" fn allocate(
    like: *mut Tensor,
    to: *mut *mut Versioned,
    context: *mut c_void,
    fail: Option<unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char)>,
) -> c_int {
    let made = || {
        Python::attach(|py| {
            // SAFETY: the caller guarantees that `like` is null or points to a tensor.
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
                // SAFETY: `shape` is not null, so the caller guarantees that it has a number for
                // each of the `dimensions` dimensions.
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
            // SAFETY: the caller guarantees that `to` can be written.
            unsafe { to.write(made) };
            0
        }
        _ => {
            if let Some(fail) = fail {
                let (kind, text) = (
                    c"RuntimeError",
                    c"crosshandle cannot allocate such a tensor",
                );
                // SAFETY: the caller guarantees that `fail` may be called with `context` and two C
                // strings.
                unsafe { fail(context, kind.as_ptr(), text.as_ptr()) };
            }
            -1
        }
    }
}

/// The table's function `current_stream`: always returns null, which means the default stream.
///
/// # Safety
/// The caller must ensure that `to` can be written.
unsafe extern "C" fn current_stream(_kind: c_int, _number: i32, to: *mut *mut c_void) -> c_int {
    // This library has no current stream.
    //
    // SAFETY: the caller guarantees that `to` can be written.
    unsafe { to.write(ptr::null_mut()) };
    0
}
