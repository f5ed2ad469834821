//! Copies into shared memory.

use super::description::{Foreign, Place};
use crate::array::{Array, Dtype, Layout};
use crate::context::Context;
use crate::error::Failure;
use crate::interrupt::detached;
use crosshandle::{Access, Command, MemoryRange};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ptr::{self, NonNull};

/// The bytes that host memory is filled with at a time.
const CHUNK: usize = 1 << 16;

/// Copies another library's array into new memory of a context on the array's device. One on a GPU has no gaps, and
/// its bytes are there.
#[pyfunction]
pub(crate) fn copied(
    py: Python<'_>,
    context: &Context,
    array: &Bound<'_, Foreign>,
) -> PyResult<Array> {
    let foreign = array.get();
    let made = context.empty_of(
        py,
        foreign.layout.dtype.clone(),
        foreign.layout.shape.clone(),
    )?;
    if foreign.place != Place::Host {
        return on_device(py, context, foreign, made);
    }
    if made.memory.memory.bytes().is_err() {
        return Err(PyValueError::new_err(
            "arrays of the host are copied to memory of the host",
        ));
    }
    let size = foreign.layout.dtype.bytes();
    // The dimensions at the end that lie without gaps are copied at once.
    let (shape, strides) = (&foreign.layout.shape, &foreign.layout.strides);
    let (mut outer, mut run) = (shape.len(), size);
    while outer > 0 && (strides[outer - 1] == run as isize || shape[outer - 1] == 1) {
        run *= shape[outer - 1];
        outer -= 1;
    }
    if shape.contains(&0) {
        return Ok(made);
    }
    let mut index = vec![0; outer];
    let first = foreign.first + foreign.layout.offset;
    let from = ptr::with_exposed_provenance::<u8>(first);
    let mut to = made.memory.memory.as_ptr();
    loop {
        let places = index.iter().zip(strides);
        let offset: isize = places.map(|(place, stride)| *place as isize * stride).sum();
        // SAFETY: the library says that these bytes are the array's, and its owner is held; that the elements
        // have addresses was checked when it was described. The memory was just made, with as many bytes as the
        // elements have, and nobody else has it.
        unsafe {
            ptr::copy_nonoverlapping(from.offset(offset), to, run);
            to = to.add(run);
        }
        // To the next run, the last dimension fastest.
        let Some(dimension) =
            (0..outer).rfind(|dimension| index[*dimension] + 1 < shape[*dimension])
        else {
            return Ok(made);
        };
        index[dimension] += 1;
        index[dimension + 1..].fill(0);
    }
}

/// Makes an array in new memory of a context, filled with the bytes of one element or of several, over and over.
#[pyfunction]
pub(crate) fn filled(
    py: Python<'_>,
    context: &Context,
    shape: &Bound<'_, PyAny>,
    dtype: &Bound<'_, PyAny>,
    element: &[u8],
) -> PyResult<Array> {
    let (dtype, shape) = (Dtype::of(dtype)?, Layout::shape_of(shape)?);
    let made = context.empty_of(py, dtype, shape)?;
    let len = made.layout.elements() * made.layout.dtype.bytes();
    if element.is_empty() || !len.is_multiple_of(element.len()) {
        return Err(PyValueError::new_err(format!(
            "{len} bytes are not filled by {} over and over",
            element.len()
        )));
    }
    let memory = &made.memory.memory;
    let fill = || {
        if len == 0 {
            return Ok(());
        }
        if memory.bytes().is_err() {
            let queue = context.0.create_queue()?;
            queue.submit(Command::fill(memory.range(..len)?, element)?)?;
            return queue.finish();
        }
        // In pieces that fit into a cache.
        let piece = element.repeat((CHUNK / element.len()).max(1));
        let mut offset = 0;
        while offset < len {
            let next = piece.len().min(len - offset);
            memory.write(offset, &piece[..next])?;
            offset += next;
        }
        Ok(())
    };
    py.detach(fill).map_err(Failure::from)?;
    Ok(made)
}

/// Copies an array of this package without gaps into new memory of a context on any device.
#[pyfunction]
pub(crate) fn moved(py: Python<'_>, context: &Context, array: &Array) -> PyResult<Array> {
    if !array.layout.is_contiguous() {
        return Err(PyValueError::new_err(
            "an array with gaps is copied by its own library: make it contiguous first",
        ));
    }
    let layout = &array.layout;
    let made = context.empty_of(py, layout.dtype.clone(), layout.shape.clone())?;
    let len = layout.elements() * layout.dtype.bytes();
    if len == 0 {
        return Ok(made);
    }
    // A queue of the device, if one of them is.
    let on = match made.memory.memory.bytes() {
        Ok(_) => &array.memory.context,
        Err(_) => &context.0,
    };
    let copy = || {
        let from = array
            .memory
            .memory
            .range(layout.offset..layout.offset + len)?;
        let queue = on.create_queue()?;
        queue.submit(Command::copy(from, made.memory.memory.range(..len)?)?)?;
        queue.finish()
    };
    py.detach(copy).map_err(Failure::from)?;
    Ok(made)
}

/// Copies by a queue, and waits for it.
fn on_device(py: Python<'_>, context: &Context, foreign: &Foreign, made: Array) -> PyResult<Array> {
    if !foreign.layout.is_contiguous() {
        return Err(PyValueError::new_err(
            "an array with gaps is copied by its own library: make it contiguous first",
        ));
    }
    let Some(first) = NonNull::new(ptr::with_exposed_provenance_mut(foreign.first)) else {
        // Without elements.
        return Ok(made);
    };
    // SAFETY: the library says that these bytes are the array's, and its owner is held until the copy is done.
    let from = unsafe { MemoryRange::from_raw_parts(first, foreign.len, Access::ReadOnly) };
    let copy = || {
        let queue = context.0.create_queue()?;
        let to = made.memory.memory.range(..foreign.len)?;
        queue.submit(Command::copy(from, to)?)?;
        Ok(queue)
    };
    let queue = detached(py, copy)?;
    // Ctrl-C would leave the array to be written or freed while it is read.
    py.detach(|| queue.finish()).map_err(Failure::from)?;
    Ok(made)
}
