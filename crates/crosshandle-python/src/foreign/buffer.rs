//! Describes arrays through Python's buffer protocol.

use super::description::{Foreign, Place};
use super::interface::{is_swapped, swapped};
use crate::array::Dtype;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::slice;

/// A buffer view of another library's array. Dropping it releases the view.
struct View(Box<ffi::Py_buffer>);

impl View {
    fn of(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::uninit());
        // SAFETY: `value` is a live object, and the pointer to `view` can be written. The function
        // fills the view if it returns 0.
        let got = unsafe {
            ffi::PyObject_GetBuffer(value.as_ptr(), view.as_mut_ptr(), ffi::PyBUF_FULL_RO)
        };
        if got != 0 {
            return Err(PyErr::fetch(value.py()));
        }
        // SAFETY: `PyObject_GetBuffer` returned 0, so it has filled the view.
        Ok(Self(unsafe { view.assume_init() }))
    }

    fn dtype(&self) -> PyResult<Dtype> {
        let format = match self.0.format.is_null() {
            true => "B".into(),
            // SAFETY: `format` is not null. It points to a C string that the view's owner keeps
            // until the view is released.
            false => unsafe { CStr::from_ptr(self.0.format) }.to_string_lossy(),
        };
        let dtype = Dtype::from_format(&format, self.0.itemsize as usize);
        dtype.ok_or_else(|| match is_swapped(&format) {
            true => swapped(&format),
            false => {
                PyTypeError::new_err(format!("elements of format {format:?} cannot be shared"))
            }
        })
    }

    /// Returns the view's list of sizes, strides or suboffsets that `start` points to. Returns an
    /// empty list if `start` is null.
    fn numbers(&self, start: *const ffi::Py_ssize_t) -> &[ffi::Py_ssize_t] {
        match start.is_null() || self.0.ndim <= 0 {
            true => &[],
            // SAFETY: `start` is not null. The view was requested with `PyBUF_FULL_RO`, so `start`
            // points to one number for each dimension.
            false => unsafe { slice::from_raw_parts(start, self.0.ndim as usize) },
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: `of` has filled the view, and this is the only release. The dropping thread holds
        // the interpreter's lock.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
    }
}

/// The result of describing an object through the buffer protocol.
pub(super) enum Found {
    Array(Foreign),
    /// The object has a buffer, but its elements cannot be shared. Contains the reason.
    Refused(PyErr),
    NoBuffer,
}

/// Describes an array through the buffer protocol.
pub(super) fn describe(value: &Bound<'_, PyAny>) -> PyResult<Found> {
    // The description holds a memoryview, because some objects (such as `bytearray`) move or free
    // their bytes unless a view exists.
    let Ok(held) = PyMemoryView::from(value) else {
        return Ok(Found::NoBuffer);
    };
    let view = View::of(&held)?;
    let dtype = match view.dtype() {
        Ok(dtype) => dtype,
        Err(refused) => return Ok(Found::Refused(refused)),
    };
    let suboffsets = view.numbers(view.0.suboffsets);
    if suboffsets.iter().any(|offset| *offset >= 0) {
        return Ok(Found::Refused(PyTypeError::new_err(
            "arrays of pointers to rows cannot be shared: copy the array into one block",
        )));
    }
    let shape = view.numbers(view.0.shape).iter().map(|size| *size as usize);
    let strides = view.numbers(view.0.strides).to_vec();
    let array = Foreign::new(
        Place::Host,
        view.0.buf.addr(),
        dtype,
        shape.collect(),
        Some(strides),
        view.0.readonly != 0,
        held.into_any().unbind(),
    )?;
    Ok(Found::Array(array))
}
