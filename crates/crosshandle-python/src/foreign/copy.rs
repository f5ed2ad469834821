//! Copies into shared memory.

use super::description::{Foreign, Place};
use crate::array::Array;
use crate::context::Context;
use crate::error::Failure;
use crate::interrupt::detached;
use crosshandle::{Access, Command, MemoryRange};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ptr::{self, NonNull};

/// Copies another library's array into new memory of a context on the array's device. One on a GPU has no gaps, and
/// its bytes are there.
#[pyfunction]
pub(crate) fn copied(
    py: Python<'_>,
    context: &Context,
    array: &Bound<'_, Foreign>,
) -> PyResult<Array> {
    let foreign = array.get();
    let made = context.empty_of(py, foreign.layout.dtype, foreign.layout.shape.clone())?;
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
