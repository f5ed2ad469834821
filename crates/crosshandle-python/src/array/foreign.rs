//! Arrays of other libraries, by the buffer protocol.

use super::{Array, Dtype, Layout};
use crate::context::Context;
use crate::error::Failure;
use crate::memory::Memory;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::slice;

/// An array of another library, held until this is dropped.
struct Foreign {
    view: Box<ffi::Py_buffer>,
}

impl Foreign {
    fn of(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::uninit());
        // SAFETY: `value` is an object, and the call fills the view if it returns 0.
        let got = unsafe {
            ffi::PyObject_GetBuffer(value.as_ptr(), view.as_mut_ptr(), ffi::PyBUF_FULL_RO)
        };
        if got != 0 {
            drop(PyErr::take(value.py()));
            let class = value.get_type();
            return Err(PyTypeError::new_err(format!(
                "{} is no array that the host can access: it has no buffer",
                class.name()?
            )));
        }
        // SAFETY: it was filled.
        let view = unsafe { view.assume_init() };
        Ok(Self { view })
    }

    fn dtype(&self) -> PyResult<Dtype> {
        let format = match self.view.format.is_null() {
            true => "B".into(),
            // SAFETY: the view's owner keeps the text until the view is released.
            false => unsafe { CStr::from_ptr(self.view.format) }.to_string_lossy(),
        };
        let dtype = Dtype::from_format(&format, self.view.itemsize as usize);
        dtype.ok_or_else(|| {
            PyTypeError::new_err(format!("elements of format {format:?} cannot be shared"))
        })
    }

    /// Returns the sizes or strides at `start`.
    fn numbers(&self, start: *const ffi::Py_ssize_t) -> &[ffi::Py_ssize_t] {
        match start.is_null() || self.view.ndim <= 0 {
            true => &[],
            // SAFETY: with the flags that it was asked with, a view has one for each dimension.
            false => unsafe { slice::from_raw_parts(start, self.view.ndim as usize) },
        }
    }

    fn shape(&self) -> Vec<usize> {
        self.numbers(self.view.shape)
            .iter()
            .map(|size| *size as usize)
            .collect()
    }

    /// Returns whether elements are reached by addresses alone.
    fn is_strided(&self) -> bool {
        self.numbers(self.view.suboffsets)
            .iter()
            .all(|offset| *offset < 0)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: it was filled, and is released once; its maker holds the interpreter's lock.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.view) };
    }
}

/// Returns another library's array as one of shared memory, if it lies in an allocation of the context.
#[pyfunction]
pub(crate) fn adopt(
    py: Python<'_>,
    context: &Context,
    value: &Bound<'_, PyAny>,
) -> PyResult<Option<Array>> {
    let foreign = Foreign::of(value)?;
    let (dtype, shape) = (foreign.dtype()?, foreign.shape());
    if !foreign.is_strided() {
        return Ok(None);
    }
    let strides = foreign.numbers(foreign.view.strides).to_vec();
    // Behind the address, if a dimension runs backwards.
    let before = shape
        .iter()
        .zip(&strides)
        .map(|(size, stride)| (*size as isize - 1).max(0).saturating_mul((*stride).min(0)));
    let before: isize = before.sum();
    let first = (foreign.view.buf.addr() as isize).wrapping_add(before) as usize;
    let Ok(handle) = context.0.memory_handle(std::ptr::without_provenance(first)) else {
        return Ok(None);
    };
    let memory = Memory::open(py, &context.0, handle, true)?.shared()?;
    let layout = Layout {
        dtype,
        shape,
        strides,
        offset: before.unsigned_abs(),
    };
    Array::new(memory, layout).map(Some)
}

/// Copies another library's array into new memory of a context.
#[pyfunction]
pub(crate) fn copied(
    py: Python<'_>,
    context: &Context,
    value: &Bound<'_, PyAny>,
) -> PyResult<Array> {
    let mut foreign = Foreign::of(value)?;
    let (dtype, shape) = (foreign.dtype()?, foreign.shape());
    let mut bytes = vec![0_u8; foreign.view.len as usize];
    let (len, order) = (foreign.view.len, b'C' as c_char);
    // SAFETY: there is room for as many bytes as the elements have, and the view was filled.
    let got = unsafe {
        ffi::PyBuffer_ToContiguous(
            bytes.as_mut_ptr().cast(),
            &raw mut *foreign.view,
            len,
            order,
        )
    };
    if got != 0 {
        return Err(PyErr::fetch(py));
    }
    drop(foreign);
    let array = context.empty_of(py, dtype, shape)?;
    let written = py.detach(|| array.memory.memory.write(0, &bytes));
    written.map_err(Failure::from)?;
    Ok(array)
}
