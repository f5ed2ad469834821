//! Bundles: the bytes that carry arrays to other processes. The library has their format
//! (`crosshandle::handle::bundle`); `crosshandle/_sharing.py` has the grammar of their structure.

use crate::array::{Array, Dtype, Layout};
use crate::error::Result;
use crate::handle::EventHandle;
use crate::interrupt::detached;
use crate::memory::Memory;
use crosshandle::handle::bundle::{
    self, Bundle, BundleError, BundledArray, Dimension, ElementType, ReadyEvent, Unpacked,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::collections::HashMap;
use std::sync::Arc;

/// Packs arrays and the structure that they are arranged in. `read_only`: they can be opened read-only alone.
/// `event`: the handle of an event and the number of the signal after which they are ready.
#[pyfunction]
#[pyo3(signature = (structure, arrays, read_only, *, event = None))]
pub(crate) fn pack<'py>(
    py: Python<'py>,
    structure: &str,
    arrays: &Bound<'py, PyList>,
    read_only: bool,
    event: Option<(PyRef<'py, EventHandle>, u64)>,
) -> PyResult<Bound<'py, PyBytes>> {
    let bundle = gather(structure, arrays, read_only, event)?;
    Ok(PyBytes::new(py, &bundle.encode().map_err(refused)?))
}

/// Packs as `pack` does. A long table goes into memory of the context, which is the second result: keep it
/// for as long as somebody may unpack the bytes. Otherwise the second result is None.
#[pyfunction]
#[pyo3(signature = (context, structure, arrays, read_only, *, event = None))]
pub(crate) fn pack_shared<'py>(
    py: Python<'py>,
    context: &crate::context::Context,
    structure: &str,
    arrays: &Bound<'py, PyList>,
    read_only: bool,
    event: Option<(PyRef<'py, EventHandle>, u64)>,
) -> PyResult<(Bound<'py, PyBytes>, Option<Memory>)> {
    let bundle = gather(structure, arrays, read_only, event)?;
    let packed: Result<_> = context.0.pack_bundle(&bundle).map_err(Into::into);
    let (bytes, table) = packed?.into_parts();
    let table = table.map(|memory| Memory::allocated(memory, context.0.clone()));
    Ok((PyBytes::new(py, &bytes), table))
}

/// Unpacks a bundle, and opens its memory in a context. Returns the structure and the arrays.
#[pyfunction]
#[pyo3(signature = (context, data, *, writable = true))]
pub(crate) fn unpack<'py>(
    py: Python<'py>,
    context: &crate::context::Context,
    data: &[u8],
    writable: bool,
) -> PyResult<(String, Bound<'py, PyList>)> {
    let bundle = detached(py, || context.0.unpack_bundle(data))?;
    let arrays = PyList::empty(py);
    let mut opened = HashMap::new();
    for array in bundle.arrays {
        let writable = writable && !array.read_only;
        let key = (*array.handle.as_bytes(), writable);
        let memory = match opened.get(&key) {
            Some(memory) => Arc::clone(memory),
            None => {
                let memory = Memory::open(py, &context.0, array.handle, writable)?.shared()?;
                opened.entry(key).or_insert(memory).clone()
            }
        };
        arrays.append(Array::new(memory, layout_of(array.layout)?)?)?;
    }
    Ok((bundle.structure, arrays))
}

/// Returns the handle of the event in a bundle's bytes and the number of its signal, or None. Opens nothing.
#[pyfunction]
pub(crate) fn event_of(data: &[u8]) -> PyResult<Option<(EventHandle, u64)>> {
    let event = match Bundle::decode(data).map_err(refused)? {
        Unpacked::Whole(bundle) => bundle.event,
        Unpacked::Head(head) => head.event(),
    };
    Ok(event.map(|event| (EventHandle(event.handle), event.value)))
}

fn refused(error: BundleError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn gather(
    structure: &str,
    arrays: &Bound<'_, PyList>,
    read_only: bool,
    event: Option<(PyRef<'_, EventHandle>, u64)>,
) -> PyResult<Bundle> {
    let mut packed = Vec::with_capacity(arrays.len());
    for array in arrays.iter() {
        let array = array.cast_into::<Array>()?;
        let Array { memory, layout, .. } = array.get();
        let read_only = read_only || memory.is_read_only();
        packed.push(BundledArray {
            handle: memory.handle(read_only)?,
            read_only,
            layout: described(layout),
        });
    }
    Ok(Bundle {
        structure: structure.to_owned(),
        arrays: packed,
        event: event.map(|(handle, value)| ReadyEvent {
            handle: handle.0,
            value,
        }),
    })
}

fn described(layout: &Layout) -> bundle::Layout {
    let dimensions = layout.shape.iter().zip(&layout.strides);
    bundle::Layout {
        element: ElementType {
            code: layout.dtype.kind as u8,
            bits: layout.dtype.bits,
        },
        offset: layout.offset as u64,
        dimensions: dimensions
            .map(|(size, stride)| Dimension {
                size: *size as u64,
                stride: *stride as i64,
            })
            .collect(),
    }
}

fn layout_of(layout: bundle::Layout) -> PyResult<Layout> {
    let ElementType { code, bits } = layout.element;
    let dtype = Dtype::from_code(code, bits).ok_or_else(|| {
        PyValueError::new_err(format!(
            "the bundle has elements of an unknown type ({code}, {bits} bits)"
        ))
    })?;
    let too_large =
        |_| PyValueError::new_err("the bundle has an array that is too large for this machine");
    let (mut shape, mut strides) = (Vec::new(), Vec::new());
    for Dimension { size, stride } in layout.dimensions {
        shape.push(size.try_into().map_err(too_large)?);
        strides.push(stride.try_into().map_err(too_large)?);
    }
    Ok(Layout {
        dtype,
        shape,
        strides,
        offset: layout.offset.try_into().map_err(too_large)?,
    })
}
