//! Arrays that describe themselves by the dictionaries `__cuda_array_interface__`,
//! `__sycl_usm_array_interface__` and `__array_interface__`.

use super::description::{Foreign, Place};
use crate::array::Dtype;
use crate::array::arguments::Sizes;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Returns the dictionary in an attribute, or `None` if there is none. Some libraries raise an
/// exception for arrays that do not have the attribute, such as arrays that are not on a GPU.
fn dictionary<'py>(
    value: &Bound<'py, PyAny>,
    attribute: &str,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Ok(Some(found)) = value.getattr_opt(attribute) else {
        return Ok(None);
    };
    Ok(Some(found.cast_into::<PyDict>()?))
}

fn item<'py>(interface: &Bound<'py, PyDict>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(interface.get_item(name)?.filter(|item| !item.is_none()))
}

fn needed<'py>(interface: &Bound<'py, PyDict>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    item(interface, name)?
        .ok_or_else(|| PyValueError::new_err(format!("the array's interface has no {name:?}")))
}

/// Returns whether a type's name has the byte order that differs from this machine's.
pub(super) fn is_swapped(name: &str) -> bool {
    name.starts_with(match cfg!(target_endian = "little") {
        true => ['>', '!'],
        false => ['<', '<'],
    })
}

/// Returns the error for elements with another byte order.
pub(crate) fn swapped(name: impl std::fmt::Display) -> PyErr {
    PyTypeError::new_err(format!(
        "elements of {name} are not in this machine's byte order: share \
         array.astype(array.dtype.newbyteorder(\"=\"))"
    ))
}

/// Converts a dictionary. Strides are in bytes, or in elements if `in_elements` is true. `keep` is
/// the object that keeps the bytes alive.
fn read(
    interface: &Bound<'_, PyDict>,
    place: Place,
    in_elements: bool,
    keep: &Bound<'_, PyAny>,
) -> PyResult<Foreign> {
    if item(interface, "mask")?.is_some() {
        return Err(masked());
    }
    let typestr = needed(interface, "typestr")?;
    let text: String = typestr.extract()?;
    let dtype = match Dtype::lookup(&text) {
        Some(dtype) => dtype,
        None if is_swapped(&text) => return Err(swapped(&text)),
        // NumPy describes records, and types from other packages, as bytes without a type.
        None => match keep.getattr_opt("dtype")? {
            Some(dtype) => Dtype::of(&dtype)?,
            None => Dtype::of(&typestr)?,
        },
    };
    let (address, read_only): (usize, bool) = needed(interface, "data")?.extract()?;
    let Sizes(shape) = needed(interface, "shape")?.extract::<Sizes<usize>>()?;
    let strides: Option<Vec<isize>> = match item(interface, "strides")? {
        None => None,
        Some(strides) => Some(strides.extract::<Sizes<isize>>()?.0),
    };
    let unit = if in_elements {
        dtype.bytes() as isize
    } else {
        1
    };
    let strides = strides.map(|strides| {
        let bytes = strides.iter().map(|stride| stride.saturating_mul(unit));
        bytes.collect::<Vec<_>>()
    });
    let offset = match item(interface, "offset")? {
        Some(offset) if in_elements => offset.extract::<isize>()?.saturating_mul(unit),
        _ => 0,
    };
    let address = address.wrapping_add_signed(offset);
    Foreign::new(
        place,
        address,
        dtype,
        shape,
        strides,
        read_only,
        keep.clone().unbind(),
    )
}

/// Describes an array on a CUDA device. Returns `None` if it has no such interface.
pub(super) fn cuda(value: &Bound<'_, PyAny>) -> PyResult<Option<Foreign>> {
    let Some(interface) = dictionary(value, "__cuda_array_interface__")? else {
        return Ok(None);
    };
    // The interface does not say which device the array is on, so ask DLPack.
    let named = value.call_method0("__dlpack_device__");
    let place = match named.and_then(|named| named.extract::<(i32, i32)>()) {
        Ok((kind, number)) => Place::from_dlpack(kind, number)?,
        Err(_) => Place::SomeCuda,
    };
    let mut array = read(&interface, place, false, value)?;
    // A CuPy array refers to its memory object, so the array may end before the memory.
    let memory = value.getattr_opt("data")?;
    if let Some(memory) = memory.and_then(|data| data.getattr_opt("mem").ok().flatten()) {
        array.owner = memory.unbind();
    }
    if is_never_written(value)? {
        array.read_only = true;
        // The capsule holds JAX's buffer, so JAX copies it when it is donated. The array itself
        // could be donated while other processes read it.
        array.owner = value.call_method0("__dlpack__")?.unbind();
    }
    Ok(Some(array))
}

/// Waits until the bytes of an array in SYCL's unified shared memory are ready, and describes the
/// array. Returns `None` if it has no such interface.
pub(super) fn sycl(value: &Bound<'_, PyAny>) -> PyResult<Option<Foreign>> {
    let Some(interface) = dictionary(value, "__sycl_usm_array_interface__")? else {
        return Ok(None);
    };
    let mut array = read(&interface, Place::SomeSycl, true, value)?;
    // dpctl memory reports itself as read-only, but it is writable.
    if module_of(value)?.is_some_and(|name| name.starts_with("dpctl.memory")) {
        array.read_only = false;
    }
    // An event of this package cannot wait for a SYCL queue, so wait for the queue here. `syclobj`
    // may also be a context or a device.
    if let Some(queue) = item(&interface, "syclobj")?
        && queue.hasattr("wait")?
    {
        queue.call_method0("wait")?;
    }
    Ok(Some(array))
}

/// Describes an array on the host. Returns `None` if it has no such interface.
pub(super) fn host(value: &Bound<'_, PyAny>) -> PyResult<Option<Foreign>> {
    let interface = dictionary(value, "__array_interface__")?;
    let described = interface.map(|found| read(&found, Place::Host, false, value));
    described.transpose()
}

/// Returns whether an array's library requires that nothing writes to the array, as JAX does. If
/// so, waits until the bytes are ready.
pub(super) fn is_never_written(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let module = module_of(value)?;
    let is_jax = module.is_some_and(|name| name.starts_with("jax"));
    if is_jax {
        // JAX has no stream that could signal an event, so wait for the array here.
        value.call_method0("block_until_ready")?;
    }
    Ok(is_jax)
}

/// Fails for an array with a mask or a unit. The array protocols do not carry these, so sharing the
/// array would lose them silently.
#[pyfunction]
pub(crate) fn check_whole(value: &Bound<'_, PyAny>) -> PyResult<()> {
    let class = value.get_type();
    for base in class.mro() {
        let module: Option<String> = base
            .getattr("__module__")
            .and_then(|name| name.extract())
            .ok();
        let name: String = base.getattr("__name__")?.extract()?;
        if module.is_some_and(|module| module.starts_with("numpy.ma")) || name.starts_with("Masked")
        {
            return Err(masked());
        }
    }
    for name in ["unit", "units"] {
        // Some libraries raise an exception for certain values.
        let Ok(Some(unit)) = value.getattr_opt(name) else {
            continue;
        };
        if !unit.is_none() && !unit.is_callable() {
            return Err(PyTypeError::new_err(format!(
                "an array with a unit cannot be shared, since its unit ({unit}) would be lost: share its values"
            )));
        }
    }
    Ok(())
}

fn masked() -> PyErr {
    PyTypeError::new_err("an array with a mask cannot be shared: share its data and its mask")
}

/// Returns the name of the module that defines an object's class.
fn module_of(value: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let module = value.get_type().getattr_opt("__module__")?;
    Ok(module.and_then(|module| module.extract().ok()))
}
