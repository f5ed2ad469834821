//! Copies other libraries' arrays into shared memory.

use super::description::{Foreign, Place};
use super::owners::Owners;
use crate::array::{Array, Dtype, Layout};
use crate::context::Context;
use crate::error::Failure;
use crosshandle::{Access, Command, MemoryRange};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Maximum size in bytes of the pieces in which host memory is filled, unless the pattern itself is
/// larger.
const CHUNK: usize = 1 << 16;

/// Maximum number of contiguous runs in a device array that this module copies. An array with more
/// runs must be copied by its own library, because one kernel is faster than that many copy
/// commands.
const MAX_DEVICE_RUNS: usize = 1 << 16;

/// Copies another library's array into new memory. `context` must be on the array's device. The
/// caller must wait until the bytes of a GPU array are ready.
#[pyfunction]
pub(crate) fn copied(
    py: Python<'_>,
    context: &Context,
    array: &Bound<'_, Foreign>,
) -> PyResult<Array> {
    copy(py, context, array.get())
}

/// Waits until an array's bytes are ready, and then copies the array into new memory. `context`
/// must be on the array's device.
#[pyfunction]
pub(crate) fn copied_array(
    py: Python<'_>,
    context: &Context,
    array: &Bound<'_, Array>,
) -> PyResult<Array> {
    array.get().wait_ready(py, None)?;
    copy(py, context, &Array::described(array)?)
}

fn copy(py: Python<'_>, context: &Context, foreign: &Foreign) -> PyResult<Array> {
    let made = context.empty_of(
        py,
        foreign.layout.dtype.clone(),
        foreign.layout.shape.clone(),
    )?;
    if foreign.layout.elements() == 0 {
        return Ok(made);
    }
    let runs = Runs::of(&foreign.layout);
    if foreign.place != Place::Host {
        on_device(py, context, foreign, &runs, &made)?;
        return Ok(made);
    }
    if made.memory.memory.bytes().is_err() {
        return Err(PyValueError::new_err(
            "arrays on the host are copied to host memory",
        ));
    }
    // SAFETY: the new memory has room for all elements, and only this function has it.
    unsafe { on_host(foreign, &runs, made.memory.memory.as_ptr())? };
    Ok(made)
}

/// Copies an array of the host.
///
/// # Safety
/// The caller must ensure that `to` points to memory for all elements, to which no other thread
/// writes.
unsafe fn on_host(foreign: &Foreign, runs: &Runs<'_>, to: *mut u8) -> PyResult<()> {
    let from = ptr::with_exposed_provenance::<u8>(foreign.first);
    runs.each(|offset, place| {
        // SAFETY: the array's library reported that these bytes belong to the array, and `foreign`
        // holds their owner. `Foreign::new` checked that every run is inside them. The caller
        // guarantees that `to` has room for them.
        unsafe { ptr::copy_nonoverlapping(from.add(offset), to.add(place), runs.len) };
        Ok(())
    })
}

/// Copies an array of the host into a slot of a channel, or into a buffer. Lets other threads run
/// while it copies many bytes.
///
/// # Safety
/// The caller must ensure that `to` points to `bytes` bytes, to which no other thread writes.
pub(crate) unsafe fn copied_to_slot(
    py: Python<'_>,
    foreign: &Foreign,
    to: *mut u8,
    bytes: usize,
) -> PyResult<()> {
    let layout = &foreign.layout;
    if foreign.place != Place::Host || layout.elements() * layout.dtype.bytes() > bytes {
        return Err(PyValueError::new_err(
            "an array on the host with at most as many bytes as the slot is needed",
        ));
    }
    if layout.elements() == 0 {
        return Ok(());
    }
    let runs = Runs::of(layout);
    /// A pointer that another closure may have.
    struct To(*mut u8);
    // SAFETY: only the closure below uses the pointer, and the caller waits for it.
    unsafe impl Send for To {}
    let to = To(to);
    let copy = move || {
        let to = to;
        // SAFETY: the caller guarantees that no other thread writes there. The check above shows
        // that there is room for the elements.
        unsafe { on_host(foreign, &runs, to.0) }
    };
    match bytes < DETACHED_BYTES {
        true => copy(),
        false => py.detach(copy),
    }
}

/// Submits copies of a GPU array into a slot of a channel. The array lives until they are complete.
pub(crate) fn submitted_to_slot(
    py: Python<'_>,
    queue: &crosshandle::Queue,
    foreign: &Foreign,
    to: &MemoryRange,
) -> PyResult<()> {
    let layout = &foreign.layout;
    if layout.elements() == 0 {
        return Ok(());
    }
    let runs = Runs::of(layout);
    if runs.count() > MAX_DEVICE_RUNS {
        return Err(too_many_runs());
    }
    let owner = Arc::new(Owners(vec![foreign.owner.clone_ref(py)]));
    runs.each(|offset, place| {
        let first = ptr::with_exposed_provenance_mut(foreign.first + offset);
        let Some(first) = NonNull::new(first) else {
            return Ok(());
        };
        // SAFETY: the array's library reported that these bytes belong to the array. The range
        // keeps their owner until the copy is complete.
        let from = unsafe { MemoryRange::from_raw_parts(first, runs.len, Access::ReadOnly) };
        let from = from.keeping(Arc::clone(&owner));
        queue.submit(Command::copy(from, to.range(place..place + runs.len)?)?)
    })
}

fn too_many_runs() -> PyErr {
    PyValueError::new_err(
        "an array with that many gaps is copied by its own library: make it contiguous first",
    )
}

/// Minimum size in bytes of a copy into a slot that lets other Python threads run.
const DETACHED_BYTES: usize = 64 << 10;

/// The contiguous runs in an array. The array has at least one element.
struct Runs<'a> {
    layout: &'a Layout,
    /// The number of leading dimensions that a run does not cover.
    outer: usize,
    /// The size of each run in bytes.
    len: usize,
}

impl<'a> Runs<'a> {
    fn of(layout: &'a Layout) -> Self {
        let (shape, strides) = (&layout.shape, &layout.strides);
        let (mut outer, mut len) = (shape.len(), layout.dtype.bytes());
        while outer > 0 && (strides[outer - 1] == len as isize || shape[outer - 1] == 1) {
            len *= shape[outer - 1];
            outer -= 1;
        }
        Self { layout, outer, len }
    }

    fn count(&self) -> usize {
        self.layout.shape[..self.outer].iter().product()
    }

    /// Calls `call` for each run with two offsets in bytes: the run's offset from the array's
    /// lowest byte, and the run's offset in the copy.
    fn each(&self, mut call: impl FnMut(usize, usize) -> crosshandle::Result<()>) -> PyResult<()> {
        let (shape, strides) = (&self.layout.shape, &self.layout.strides);
        let mut index = vec![0; self.outer];
        for run in 0..self.count() {
            let places = index.iter().zip(strides);
            let distance: isize = places.map(|(place, stride)| *place as isize * stride).sum();
            let offset = self.layout.offset.wrapping_add_signed(distance);
            call(offset, run * self.len).map_err(Failure::from)?;
            // Advance to the next run. The last dimension varies fastest.
            let next = (0..self.outer).rfind(|dimension| index[*dimension] + 1 < shape[*dimension]);
            if let Some(dimension) = next {
                index[dimension] += 1;
                index[dimension + 1..].fill(0);
            }
        }
        Ok(())
    }
}

/// Creates an array in new memory and fills it with a repeated pattern. `element` contains the
/// bytes of the pattern. The size of the array must be a multiple of the size of the pattern.
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
            "the array has {len} bytes, which is not a multiple of the {} bytes of the pattern",
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
        // Write the pattern in pieces that fit into the processor's cache.
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

/// Copies a contiguous `crosshandle.Array` into new memory. `context` may be on any device.
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
    // If the destination is in host memory, use a queue on the source's device. Otherwise use a
    // queue on the destination's device.
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

/// Copies a device array run by run with a new queue, and waits until the copy is done.
fn on_device(
    py: Python<'_>,
    context: &Context,
    foreign: &Foreign,
    runs: &Runs<'_>,
    made: &Array,
) -> PyResult<()> {
    if runs.count() > MAX_DEVICE_RUNS {
        return Err(too_many_runs());
    }
    let queue = context.0.create_queue().map_err(Failure::from)?;
    let submitted = runs.each(|offset, place| {
        let first = ptr::with_exposed_provenance_mut(foreign.first + offset);
        let Some(first) = NonNull::new(first) else {
            return Ok(());
        };
        // SAFETY: the array's library reported that these bytes belong to the array. `foreign`
        // holds their owner until this function returns, which is after the copy is done.
        let from = unsafe { MemoryRange::from_raw_parts(first, runs.len, Access::ReadOnly) };
        let to = made.memory.memory.range(place..place + runs.len)?;
        queue.submit(Command::copy(from, to)?)?;
        Ok(())
    });
    // Wait even after an error, and do not check for Ctrl-C: the owner must be held until the
    // submitted copies are done.
    py.detach(|| queue.finish()).map_err(Failure::from)?;
    submitted
}
