//! Conversions of arguments of any size: lists, shapes and bytes. No function in this file trusts a
//! claimed length: memory is allocated only for items that exist, or after a check of the machine's
//! free memory.

use super::MAX_DIMENSIONS;
use crosshandle::report::memory_limit;
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyMemoryView, PySequence, PyString};
use std::ops::Deref;

/// Minimum size in bytes of a copy for which the machine's free memory is checked first. Without
/// the check, the kernel may grant more memory than is free, and kill the process when it writes
/// the copy.
const CHECKED_BYTES: usize = 32 << 20;

/// The items of a list, a tuple or another sequence, as an argument type. PyO3's own conversion to
/// `Vec` is not used, because it allocates memory for `len()` items and panics if that fails.
pub(crate) struct Items<T>(pub(crate) Vec<T>);

impl<'py, T> FromPyObject<'_, 'py> for Items<T>
where
    T: for<'a> FromPyObject<'a, 'py>,
    for<'a> PyErr: From<<T as FromPyObject<'a, 'py>>::Error>,
{
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() || object.cast::<PySequence>().is_err() {
            let class = object.get_type();
            let message = format!("expected a list or a tuple, not {}", class.name()?);
            return Err(PyTypeError::new_err(message));
        }
        let mut items = Vec::new();
        for item in object.try_iter()? {
            if items.try_reserve(1).is_err() {
                return Err(PyMemoryError::new_err("the sequence is too long"));
            }
            items.push(item?.extract().map_err(PyErr::from)?);
        }
        Ok(Self(items))
    }
}

/// A shape or strides, as an argument type: a sequence of at most [`MAX_DIMENSIONS`] numbers.
pub(crate) struct Sizes<T>(pub(crate) Vec<T>);

impl<'py, T> FromPyObject<'_, 'py> for Sizes<T>
where
    T: for<'a> FromPyObject<'a, 'py>,
    for<'a> PyErr: From<<T as FromPyObject<'a, 'py>>::Error>,
{
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.cast::<PySequence>().is_ok() && object.len()? > MAX_DIMENSIONS {
            return Err(PyValueError::new_err(format!(
                "an array has at most {MAX_DIMENSIONS} dimensions"
            )));
        }
        Ok(Self(object.extract::<Items<T>>()?.0))
    }
}

/// Bytes, as an argument type: an object that supports the buffer protocol, or a sequence of
/// numbers from 0 to 255. The bytes are copied, except those of a `bytes` object, which never
/// changes.
pub(crate) struct Data(Copied);

enum Copied {
    Object(PyBackedBytes),
    Numbers(Vec<u8>),
}

impl Data {
    pub(crate) fn of_buffer(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let bytes = match object.cast::<PyBytes>() {
            Ok(bytes) => bytes.clone(),
            Err(_) => bytes_of(object)?
                .call_method0("tobytes")?
                .cast_into::<PyBytes>()?,
        };
        Ok(Self(Copied::Object(bytes.into())))
    }
}

impl FromPyObject<'_, '_> for Data {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        match Self::of_buffer(&object) {
            Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => {
                Ok(Self(Copied::Numbers(object.extract::<Items<u8>>()?.0)))
            }
            made => made,
        }
    }
}

impl Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Copied::Object(bytes) => bytes,
            Copied::Numbers(numbers) => numbers,
        }
    }
}

/// Returns a memoryview of a buffer's bytes. The buffer must be contiguous.
pub(crate) fn bytes_of<'py>(buffer: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyMemoryView>> {
    let view = PyMemoryView::from(buffer)?;
    Ok(view.call_method1("cast", ("B",))?.cast_into()?)
}

/// Fails with `MemoryError` if a copy of `bytes` bytes does not fit into the machine's free memory.
pub(crate) fn check_room(bytes: usize) -> PyResult<()> {
    if bytes < CHECKED_BYTES {
        return Ok(());
    }
    match memory_limit() {
        Some(limit) if limit.headroom < bytes as u64 => Err(PyMemoryError::new_err(format!(
            "a copy of {bytes} bytes does not fit: {limit}"
        ))),
        _ => Ok(()),
    }
}

/// Allocates a zeroed buffer of `bytes` bytes for a copy. Fails with `MemoryError` if it does not
/// fit into the machine's free memory.
pub(crate) fn room_for(bytes: usize) -> PyResult<Vec<u8>> {
    check_room(bytes)?;
    let mut room = Vec::new();
    if room.try_reserve_exact(bytes).is_err() {
        return Err(no_room(bytes));
    }
    room.resize(bytes, 0);
    Ok(room)
}

/// Creates a Python `bytes` object of `bytes` bytes. `fill` writes the contents, without the
/// interpreter's lock.
pub(crate) fn filled<'py, E: Send>(
    py: Python<'py>,
    bytes: usize,
    fill: impl FnOnce(&mut [u8]) -> Result<(), E> + Send,
) -> PyResult<Bound<'py, PyBytes>>
where
    PyErr: From<E>,
{
    check_room(bytes)?;
    PyBytes::new_with(py, bytes, |into| Ok(py.detach(|| fill(into))?))
}

/// Creates a Python `bytes` object that contains a copy of `bytes`.
pub(crate) fn copied<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, bytes.len(), |into| {
        into.copy_from_slice(bytes);
        Ok(())
    })
}

fn no_room(bytes: usize) -> PyErr {
    PyMemoryError::new_err(format!("there is no memory for a copy of {bytes} bytes"))
}
