//! Python's buffer protocol for arrays.

use super::Array;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CString, c_int, c_void};
use std::ptr;

/// The format, sizes and strides that a view points to.
struct Description {
    format: CString,
    shape: Vec<ffi::Py_ssize_t>,
    strides: Vec<ffi::Py_ssize_t>,
}

/// Fills a view of an array.
///
/// # Safety
/// The caller must ensure that `view` is null or can be written.
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
    // SAFETY: `view` is not null, so the caller promises that it can be written. The object is set
    // to null first, because a view must have no object after an error.
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
    // SAFETY: `view` can be written. `release` frees the description that the view points to, and
    // the array keeps the elements.
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

/// Frees the description that [`fill`] made. The interpreter drops the view's reference to the
/// array.
///
/// # Safety
/// The caller must ensure that `view` was filled by [`fill`].
pub(super) unsafe fn release(view: *mut ffi::Py_buffer) {
    // SAFETY: `fill` leaked the description, and the interpreter releases each view once.
    drop(unsafe { Box::from_raw((*view).internal.cast::<Description>()) });
}
