//! Implements Python's buffer protocol for `crosshandle.Array`.

use super::Array;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CString, c_int, c_void};
use std::ptr;

/// The format, shape and strides that a buffer view points to.
struct Description {
    format: CString,
    shape: Vec<ffi::Py_ssize_t>,
    strides: Vec<ffi::Py_ssize_t>,
}

/// Fills in a buffer view of an array. Fails if the host cannot access the array, or if the array
/// cannot satisfy `flags`.
///
/// # Safety
/// The caller must ensure that `view` is null or points to a `Py_buffer` that can be written.
pub(super) unsafe fn fill(
    array: Bound<'_, Array>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("there is no view to fill"));
    }
    let own = array.get();
    let refused = |why: &str| Err(PyBufferError::new_err(why.to_owned()));
    // SAFETY: `view` is not null, so the caller guarantees that it can be written. The field `obj`
    // is set to null first, because it must be null if this function fails.
    unsafe { (*view).obj = ptr::null_mut() };
    if !own.is_on_host() {
        return refused("the host cannot access this memory");
    }
    if own.read_only && flags & ffi::PyBUF_WRITABLE != 0 {
        return refused("this memory is read-only");
    }
    let wants_strides = flags & ffi::PyBUF_STRIDES == ffi::PyBUF_STRIDES;
    if !wants_strides && !own.layout.is_contiguous() {
        return refused("this array has gaps, and the consumer knows no strides");
    }
    let Some(format) = own.layout.dtype.format() else {
        return refused("the buffer protocol has no format for these elements: use DLPack");
    };
    let format = CString::new(format)?;
    let sizes = own.layout.shape.iter().map(|size| *size as ffi::Py_ssize_t);
    let mut description = Box::new(Description {
        format,
        shape: sizes.collect(),
        strides: own.layout.strides.clone(),
    });
    // SAFETY: `view` is not null, so the caller guarantees that it can be written. The view points
    // to the description until `release` frees it. The view's reference to the array keeps the
    // elements alive.
    unsafe {
        (*view).buf = own.address() as *mut c_void;
        (*view).len = own.nbytes() as ffi::Py_ssize_t;
        (*view).itemsize = own.layout.dtype.bytes() as ffi::Py_ssize_t;
        (*view).readonly = c_int::from(own.read_only);
        (*view).ndim = own.layout.shape.len() as c_int;
        (*view).format = match flags & ffi::PyBUF_FORMAT {
            0 => ptr::null_mut(),
            _ => description.format.as_ptr().cast_mut(),
        };
        (*view).shape = match flags & ffi::PyBUF_ND {
            0 => ptr::null_mut(),
            _ => description.shape.as_mut_ptr(),
        };
        (*view).strides = match wants_strides {
            false => ptr::null_mut(),
            true => description.strides.as_mut_ptr(),
        };
        (*view).suboffsets = ptr::null_mut();
        (*view).internal = Box::into_raw(description).cast();
        (*view).obj = array.into_ptr();
    }
    Ok(())
}

/// Frees the description that [`fill`] allocated for a view. The interpreter then drops the view's
/// reference to the array.
///
/// # Safety
/// The caller must ensure that [`fill`] has filled in `view`, and that `view` is released only
/// once.
pub(super) unsafe fn release(view: *mut ffi::Py_buffer) {
    // SAFETY: `internal` is the description that `fill` leaked. The caller guarantees that the view
    // is released only once.
    drop(unsafe { Box::from_raw((*view).internal.cast::<Description>()) });
}
