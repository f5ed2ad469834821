//! Arrays by dictionaries: `__cuda_array_interface__`, `__sycl_usm_array_interface__` and
//! `__array_interface__`.

use super::description::{Foreign, Place};
use crate::array::Dtype;
use crate::array::arguments::Sizes;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Reads the dictionary in an attribute; `None` if there is none. An array that has it only for some of
/// its values, such as those on a GPU, raises something for the others.
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

/// Returns whether a type's name has the byte order that this machine has not.
pub(super) fn is_swapped(name: &str) -> bool {
    name.starts_with(match cfg!(target_endian = "little") {
        true => ['>', '!'],
        false => ['<', '<'],
    })
}

/// Refuses elements of a type with another byte order.
pub(crate) fn swapped(name: impl std::fmt::Display) -> PyErr {
    PyTypeError::new_err(format!(
        "elements of {name} have the byte order of other machines: share \
         array.astype(array.dtype.newbyteorder(\"=\"))"
    ))
}

/// Describes what a dictionary says. Strides are in bytes, or in elements if `in_elements`; `keep` is what
/// the bytes live as long as.
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
        // NumPy writes records, and types that came by a package, as bytes without a type.
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

/// Describes an array on a CUDA device; `None` if it has no such interface.
pub(super) fn cuda(value: &Bound<'_, PyAny>) -> PyResult<Option<Foreign>> {
    let Some(interface) = dictionary(value, "__cuda_array_interface__")? else {
        return Ok(None);
    };
    // The interface does not name the device.
    let named = value.call_method0("__dlpack_device__");
    let place = match named.and_then(|named| named.extract::<(i32, i32)>()) {
        Ok((kind, number)) => Place::from_dlpack(kind, number)?,
        Err(_) => Place::SomeCuda,
    };
    let mut array = read(&interface, place, false, value)?;
    // CuPy's arrays name their memory, so that an array may end before its memory does.
    let memory = value.getattr_opt("data")?;
    if let Some(memory) = memory.and_then(|data| data.getattr_opt("mem").ok().flatten()) {
        array.owner = memory.unbind();
    }
    array.read_only |= is_never_written(value)?;
    Ok(Some(array))
}

/// Describes an array in unified shared memory of SYCL; `None` if it has no such interface. Its bytes are there
/// afterwards.
pub(super) fn sycl(value: &Bound<'_, PyAny>) -> PyResult<Option<Foreign>> {
    let Some(interface) = dictionary(value, "__sycl_usm_array_interface__")? else {
        return Ok(None);
    };
    let mut array = read(&interface, Place::SomeSycl, true, value)?;
    // dpctl's memory says that it is read-only, and is written all the same.
    if module_of(value)?.is_some_and(|name| name.starts_with("dpctl.memory")) {
        array.read_only = false;
    }
    // No event can follow a queue of SYCL's. It may be named otherwise, by a context or a device.
    if let Some(queue) = item(&interface, "syclobj")?
        && queue.hasattr("wait")?
    {
        queue.call_method0("wait")?;
    }
    Ok(Some(array))
}

/// Describes an array on the host; `None` if it has no such interface.
pub(super) fn host(value: &Bound<'_, PyAny>) -> PyResult<Option<Foreign>> {
    let interface = dictionary(value, "__array_interface__")?;
    let described = interface.map(|found| read(&found, Place::Host, false, value));
    described.transpose()
}

/// Returns whether an array's library relies on nobody writing it: JAX does. Such an array's bytes are there
/// afterwards.
pub(super) fn is_never_written(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let module = module_of(value)?;
    let is_jax = module.is_some_and(|name| name.starts_with("jax"));
    if is_jax {
        // There is no stream that an event could follow.
        value.call_method0("block_until_ready")?;
    }
    Ok(is_jax)
}

/// Refuses an array of NumPy's whose protocols leave its mask out.
pub(super) fn check_unmasked(value: &Bound<'_, PyAny>) -> PyResult<()> {
    match module_of(value)?.is_some_and(|name| name.starts_with("numpy.ma")) {
        true => Err(masked()),
        false => Ok(()),
    }
}

fn masked() -> PyErr {
    PyTypeError::new_err("an array with a mask cannot be shared: share its data and its mask")
}

/// Returns the name of the module that an object's class is in.
fn module_of(value: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let module = value.get_type().getattr_opt("__module__")?;
    Ok(module.and_then(|module| module.extract().ok()))
}
