//! Describes arrays through the attributes `__cuda_array_interface__`,
//! `__sycl_usm_array_interface__` and `__array_interface__`, which are dictionaries.

use super::description::{Foreign, Place};
use crate::array::Dtype;
use crate::array::arguments::Sizes;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Returns an attribute that is a dictionary, or `None` if the object has no such attribute. Treats
/// any exception as a missing attribute, because some libraries raise one for arrays that are not
/// on a GPU.
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

/// Returns whether the name of an element type specifies a byte order other than this machine's.
pub(super) fn is_swapped(name: &str) -> bool {
    name.starts_with(match cfg!(target_endian = "little") {
        true => ['>', '!'],
        false => ['<', '<'],
    })
}

/// Returns the error for elements whose byte order is not this machine's.
pub(crate) fn swapped(name: impl std::fmt::Display) -> PyErr {
    PyTypeError::new_err(format!(
        "elements of {name} are not in this machine's byte order: share \
         array.astype(array.dtype.newbyteorder(\"=\"))"
    ))
}

/// Converts an interface dictionary to a description. If `in_elements` is true, strides and offset
/// are in elements, otherwise in bytes. `keep` is the array itself, which keeps its bytes alive.
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
        // For records and for types from other packages, the dictionary only says "raw bytes". The
        // array's `dtype` attribute is more precise.
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

/// Describes an array through `__cuda_array_interface__`. Returns `None` if the object has no such
/// attribute.
pub(super) fn cuda(value: &Bound<'_, PyAny>) -> PyResult<Option<Foreign>> {
    let Some(interface) = dictionary(value, "__cuda_array_interface__")? else {
        return Ok(None);
    };
    // The interface does not contain the device's number, so use DLPack's device query.
    let named = value.call_method0("__dlpack_device__");
    let place = match named.and_then(|named| named.extract::<(i32, i32)>()) {
        Ok((kind, number)) => Place::from_dlpack(kind, number)?,
        Err(_) => Place::SomeCuda,
    };
    let mut array = read(&interface, place, false, value)?;
    // A CuPy array keeps its bytes in a separate memory object. Holding that object is enough, even
    // if the array is destroyed.
    let memory = value.getattr_opt("data")?;
    if let Some(memory) = memory.and_then(|data| data.getattr_opt("mem").ok().flatten()) {
        array.owner = memory.unbind();
    }
    if is_never_written(value)? {
        array.read_only = true;
        // Hold a DLPack capsule instead of the array. JAX may reuse the buffer of an array that the
        // program donates, but copies a buffer that a capsule holds.
        array.owner = value.call_method0("__dlpack__")?.unbind();
    }
    Ok(Some(array))
}

/// Describes an array through `__sycl_usm_array_interface__`, after its bytes are ready. Returns
/// `None` if the object has no such attribute.
pub(super) fn sycl(value: &Bound<'_, PyAny>) -> PyResult<Option<Foreign>> {
    let Some(interface) = dictionary(value, "__sycl_usm_array_interface__")? else {
        return Ok(None);
    };
    let mut array = read(&interface, Place::SomeSycl, true, value)?;
    // A dpctl memory object reports itself as read-only although it is writable.
    if module_of(value)?.is_some_and(|name| name.starts_with("dpctl.memory")) {
        array.read_only = false;
    }
    // A crosshandle event cannot follow work on a SYCL queue, so wait for the queue here. `syclobj`
    // may also be a context or a device, which need no wait.
    if let Some(queue) = item(&interface, "syclobj")?
        && queue.hasattr("wait")?
    {
        queue.call_method0("wait")?;
    }
    Ok(Some(array))
}

/// Describes an array through `__array_interface__`. Returns `None` if the object has no such
/// attribute.
pub(super) fn host(value: &Bound<'_, PyAny>) -> PyResult<Option<Foreign>> {
    let interface = dictionary(value, "__array_interface__")?;
    let described = interface.map(|found| read(&found, Place::Host, false, value));
    described.transpose()
}

/// Returns whether the array must never be written, which is true for JAX arrays. For such an
/// array, first waits until its bytes are ready.
pub(super) fn is_never_written(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let module = module_of(value)?;
    let is_jax = module.is_some_and(|name| name.starts_with("jax"));
    if is_jax {
        // JAX does not expose a stream that could signal an event, so wait for the array here.
        value.call_method0("block_until_ready")?;
    }
    Ok(is_jax)
}

/// Fails if an array has a mask or a unit. The array protocols cannot express masks and units, so a
/// shared array would silently lose them.
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
        // Some libraries raise an exception when this attribute is read. Ignore it.
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
