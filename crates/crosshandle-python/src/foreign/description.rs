//! The description of an array from another library.

use super::{buffer, capsule, interface, torch};
use crate::array::{Dtype, Layout, MAX_DIMENSIONS};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// The device that contains an array's bytes, according to the array's library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Host,
    Cuda(u32),
    /// A CUDA device whose number the library does not report.
    SomeCuda,
    /// A SYCL device whose number the library does not report.
    SomeSycl,
}

impl Place {
    /// Converts DLPack's device type and device number.
    pub(super) fn from_dlpack(kind: i32, number: i32) -> PyResult<Self> {
        match (kind, u32::try_from(number)) {
            // 3 and 11 are pinned memory, which the host can access.
            (1 | 3 | 11, _) => Ok(Self::Host),
            (2, Ok(number)) => Ok(Self::Cuda(number)),
            // 13 is CUDA managed memory. It cannot be shared, and the driver's error will give the
            // reason.
            (13, _) => Ok(Self::SomeCuda),
            (14, _) => Ok(Self::SomeSycl),
            _ => Err(PyTypeError::new_err(format!(
                "arrays on devices of DLPack's type {kind} cannot be shared: bring it to the host first"
            ))),
        }
    }
}

/// A description of an array from another library, together with the object that keeps the array's
/// bytes alive.
#[pyclass(frozen, module = "crosshandle._crosshandle")]
pub(crate) struct Foreign {
    pub(crate) place: Place,
    /// The address of the array's lowest byte.
    pub(super) first: usize,
    /// The number of bytes from the lowest byte to the highest byte, inclusive.
    pub(super) len: usize,
    /// The layout of the elements. Its offset is relative to the lowest byte.
    pub(crate) layout: Layout,
    pub(super) read_only: bool,
    /// The object that keeps the bytes alive.
    pub(crate) owner: Py<PyAny>,
}

impl Foreign {
    /// Creates a description. `address` is the address of the first element. `strides` are in
    /// bytes. `None` means an array without gaps. Fails if the bytes do not fit into the address
    /// space.
    pub(crate) fn new(
        place: Place,
        address: usize,
        dtype: Dtype,
        shape: Vec<usize>,
        strides: Option<Vec<isize>>,
        read_only: bool,
        owner: Py<PyAny>,
    ) -> PyResult<Self> {
        let too_large = || PyValueError::new_err("the array is larger than the address space");
        let mut layout = match strides {
            None => Layout::contiguous(dtype, shape, 0).ok_or_else(too_large)?,
            Some(strides) => Layout {
                dtype,
                shape,
                strides,
                offset: 0,
            },
        };
        let dimensions = layout.shape.len();
        if dimensions > MAX_DIMENSIONS || dimensions != layout.strides.len() {
            return Err(PyValueError::new_err(format!(
                "an array has at most {MAX_DIMENSIONS} dimensions, and a stride for each"
            )));
        }
        let (before, after) = layout.reach().ok_or_else(too_large)?;
        layout.offset = before;
        let first = address.checked_sub(before).ok_or_else(too_large)?;
        Ok(Self {
            place,
            first,
            len: before + after,
            layout,
            read_only,
            owner,
        })
    }
}

#[pymethods]
impl Foreign {
    /// The name of the device, such as `cuda:0`. If the library does not report the device's
    /// number, the name is `cuda` or `sycl`.
    #[getter]
    fn device(&self) -> String {
        match self.place {
            Place::Host => "host".into(),
            Place::Cuda(number) => format!("cuda:{number}"),
            Place::SomeCuda => "cuda".into(),
            Place::SomeSycl => "sycl".into(),
        }
    }

    /// The name of the element type, such as `float32`.
    #[getter]
    fn dtype(&self) -> String {
        self.layout.dtype.to_string()
    }

    /// The number of elements in each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.layout.shape)
    }

    /// The object that keeps the array's bytes alive, according to the protocol that described the
    /// array.
    #[getter]
    fn owner(&self, py: Python<'_>) -> Py<PyAny> {
        self.owner.clone_ref(py)
    }

    /// The address of the array's lowest byte.
    #[getter]
    fn address(&self) -> usize {
        self.first
    }
}

/// Describes an array from another library. Uses the first of these that the array supports:
/// torch's own interface, `__cuda_array_interface__`, `__sycl_usm_array_interface__`, the buffer
/// protocol, DLPack or `__array_interface__`. Raises `TypeError` if it supports none.
#[pyfunction]
pub(crate) fn describe(value: &Bound<'_, PyAny>) -> PyResult<Foreign> {
    if let Some(tensor) = torch::describe(value)? {
        return Ok(tensor);
    }
    interface::check_whole(value)?;
    if let Some(array) = interface::cuda(value)? {
        return Ok(array);
    }
    if let Some(array) = interface::sycl(value)? {
        return Ok(array);
    }
    let refused = match buffer::describe(value)? {
        buffer::Found::Array(array) => return Ok(array),
        buffer::Found::Refused(refused) => Some(refused),
        buffer::Found::NoBuffer => None,
    };
    match capsule::describe(value) {
        Ok(Some(array)) => return Ok(array),
        Ok(None) => {}
        // `__array_interface__` may support the element type even if DLPack does not.
        Err(error) => match interface::host(value)? {
            Some(array) => return Ok(array),
            None => return Err(refused.unwrap_or(error)),
        },
    }
    if let Some(array) = interface::host(value)? {
        return Ok(array);
    }
    Err(match refused {
        Some(refused) => refused,
        None => {
            let class = value.get_type();
            PyTypeError::new_err(format!(
                "{} is not an array that can be shared: it supports no array protocol",
                class.name()?
            ))
        }
    })
}
