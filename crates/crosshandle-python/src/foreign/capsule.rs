//! Describes arrays through DLPack capsules.

use super::description::{Foreign, Place};
use super::interface::is_never_written;
use crate::array::{Dtype, MAX_DIMENSIONS, dlpack};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::slice;

/// Describes an array through its `__dlpack__` method. Returns `None` if the object has no such
/// method.
pub(super) fn describe(value: &Bound<'_, PyAny>) -> PyResult<Option<Foreign>> {
    if value.getattr_opt("__dlpack__")?.is_none() {
        return Ok(None);
    }
    let py = value.py();
    let (kind, number): (i32, i32) = value.call_method0("__dlpack_device__")?.extract()?;
    let place = Place::from_dlpack(kind, number)?;
    let never_written = is_never_written(value)?;
    let options = PyDict::new(py);
    options.set_item("max_version", dlpack::VERSION)?;
    if place != Place::Host && !never_written {
        // The value -1 tells the library not to wait. The program's own event signals when the
        // bytes are ready.
        options.set_item("stream", -1)?;
    }
    let capsule = match value.call_method("__dlpack__", (), Some(&options)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            // Older libraries do not accept the argument `max_version`.
            options.del_item("max_version")?;
            value.call_method("__dlpack__", (), Some(&options))?
        }
        capsule => capsule?,
    };
    let (tensor, read_only) = tensor(&capsule)?;
    // SAFETY: DLPack requires that `shape` and `strides` are null or have a number for each
    // dimension. This function holds the capsule, which keeps them alive.
    let described = unsafe {
        of_tensor(
            tensor,
            place,
            read_only || never_written,
            capsule.clone().unbind(),
        )
    };
    described.map(Some)
}

/// Converts a DLPack tensor to a description. `place` is the device that the tensor's library has
/// reported. `owner` is the object that keeps the bytes alive.
///
/// # Safety
/// The caller must ensure that the tensor's `shape` and `strides` each are null or point to a
/// number for each dimension.
pub(super) unsafe fn of_tensor(
    tensor: &dlpack::Tensor,
    place: Place,
    read_only: bool,
    owner: Py<PyAny>,
) -> PyResult<Foreign> {
    let refused = |what: &str| Err(PyValueError::new_err(what.to_owned()));
    let dimensions = usize::try_from(tensor.ndim).unwrap_or(usize::MAX);
    if dimensions > MAX_DIMENSIONS {
        return refused("the array has more dimensions than can be shared");
    }
    let dtype = Dtype::from_code(tensor.code, tensor.bits).filter(|_| tensor.elements == 1);
    let Some(dtype) = dtype else {
        return Err(PyTypeError::new_err(format!(
            "elements of DLPack's type {}, {} bits, cannot be shared",
            tensor.code, tensor.bits
        )));
    };
    let numbers = |start: *const i64| match start.is_null() || dimensions == 0 {
        true => None,
        // SAFETY: `start` is the tensor's `shape` or `strides` and is not null, so the caller
        // guarantees that it points to a number for each dimension.
        false => Some(unsafe { slice::from_raw_parts(start, dimensions) }),
    };
    let shape = numbers(tensor.shape).unwrap_or_default().iter();
    let Ok(shape) = shape.map(|size| usize::try_from(*size)).collect() else {
        return refused("the array has a dimension of negative size");
    };
    let size = dtype.bytes() as i64;
    let strides = numbers(tensor.strides).map(|strides| {
        let bytes = strides
            .iter()
            .map(|stride| stride.saturating_mul(size) as isize);
        bytes.collect::<Vec<_>>()
    });
    let address = tensor.data.addr().wrapping_add(tensor.byte_offset as usize);
    Foreign::new(place, address, dtype, shape, strides, read_only, owner)
}

/// Returns the tensor in a capsule, and whether the tensor is read-only. The capsule still owns the
/// tensor and frees it on drop.
fn tensor<'a>(capsule: &'a Bound<'_, PyAny>) -> PyResult<(&'a dlpack::Tensor, bool)> {
    let pointer = capsule.as_ptr();
    let [versioned, unversioned] = dlpack::NEW_CAPSULES;
    // SAFETY: `PyCapsule_IsValid` accepts any object. DLPack requires that a capsule with one of
    // these names points to the corresponding structure, and that the structure lives as long as
    // the capsule.
    unsafe {
        if ffi::PyCapsule_IsValid(pointer, versioned.as_ptr()) == 1 {
            let held = ffi::PyCapsule_GetPointer(pointer, versioned.as_ptr());
            let held = &*held.cast::<dlpack::Versioned>();
            if held.version[0] != dlpack::VERSION[0] {
                return Err(PyTypeError::new_err(format!(
                    "the array uses version {} of DLPack, and this module supports version {}",
                    held.version[0],
                    dlpack::VERSION[0]
                )));
            }
            return Ok((&held.tensor, held.flags & dlpack::READ_ONLY != 0));
        }
        if ffi::PyCapsule_IsValid(pointer, unversioned.as_ptr()) == 1 {
            let held = ffi::PyCapsule_GetPointer(pointer, unversioned.as_ptr());
            return Ok((&(*held.cast::<dlpack::Unversioned>()).tensor, false));
        }
    }
    Err(PyTypeError::new_err(
        "__dlpack__ did not return a DLPack capsule",
    ))
}
