//! Shares the memory of arrays from other libraries without a copy.
//!
//! An array may be in memory that this library allocated (for example for torch or CuPy) or opened
//! from a handle. It may also be in memory that the array's own library got from the driver.
//! [`adopt_all`] creates one shared memory for each allocation that contains arrays. Importers can
//! therefore open a tree of hundreds of tensors with one handle. The arrays' owners stay alive
//! until this process has released the shared memory and no other process has it open.

use super::description::Foreign;
use super::owners::{self, Owners};
use crate::array::arguments::Items;
use crate::array::{Array, Layout};
use crate::context::Context;
use crate::error::exception;
use crate::memory::{SharedMemory, find_live};
use crosshandle::{Error, Memory, Result, native::DriverAllocation};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The adopted driver allocations of one context (by address) and its loans, as far as they are
/// still in use.
#[derive(Default)]
pub(crate) struct Wholes(
    Mutex<HashMap<usize, Whole>>,
    Mutex<HashMap<Loan, Weak<SharedMemory>>>,
);

/// The key of a loan: the address of the lent [`Memory`] object, and the addresses of the owner
/// objects.
type Loan = (usize, Vec<usize>);

struct Whole {
    memory: Weak<Memory>,
    allocation: DriverAllocation,
}

/// The memory that contains a group of arrays.
enum Base {
    /// Memory that is freed only as a whole. It is shared directly.
    Kept(Arc<SharedMemory>),
    /// Memory that belongs to an allocator, which divides it and reuses the parts. It is shared
    /// through a loan that keeps the arrays' owners alive, so that the arrays' bytes are not
    /// reused.
    Recycled(Arc<Memory>),
    /// One driver allocation, or several adjacent ones (for example, torch's expandable segments).
    /// The library that allocated it may reuse its parts, so it is also shared through a loan.
    Driver { number: u64, is_one: bool },
}

/// A group of arrays that are in the same memory.
struct Group {
    base: Base,
    start: usize,
    end: usize,
    /// The indexes of the group's arrays in the argument `arrays` of [`adopt_all`].
    members: Vec<usize>,
}

/// Creates arrays in shared memory from arrays of other libraries, without copying their bytes.
///
/// `owners` contains, for each array, the object that keeps the array's bytes alive. For each
/// array, the result contains a shared array, or an exception that says why other processes cannot
/// access the array's memory.
#[pyfunction]
pub(crate) fn adopt_all<'py>(
    py: Python<'py>,
    context: &Context,
    arrays: Items<Bound<'py, Foreign>>,
    owners: Items<Py<PyAny>>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let (arrays, owners) = (arrays.0, owners.0);
    if arrays.len() != owners.len() {
        return Err(PyValueError::new_err("each array has an owner"));
    }
    let arrays = Vec::from_iter(arrays.iter().map(Bound::get));
    let adopted = adopt(py, context, &arrays, &owners)?;
    let results = adopted.into_iter().map(|result| {
        Ok(match result {
            Ok(array) => Bound::new(py, array)?.into_any(),
            Err(error) => error.into_value(py).into_bound(py).into_any(),
        })
    });
    results.collect()
}

/// Creates arrays as [`adopt_all`] does. The slices have the same length.
pub(crate) fn adopt(
    py: Python<'_>,
    context: &Context,
    arrays: &[&Foreign],
    owners: &[Py<PyAny>],
) -> PyResult<Vec<PyResult<Array>>> {
    let mut results: Vec<Option<PyResult<Array>>> = Vec::new();
    results.resize_with(arrays.len(), || None);
    let refusal = |error: &Error| Err(exception(py, error));
    owners::let_go_now();
    let mut groups: Vec<Group> = Vec::new();
    // The order is by address, so that arrays in the same memory are adjacent.
    let mut order = Vec::from_iter(0..arrays.len());
    order.sort_unstable_by_key(|place| arrays[*place].first);
    for place in order {
        let foreign = arrays[place];
        if foreign.len == 0 {
            let layout = Layout {
                offset: 0,
                ..foreign.layout.clone()
            };
            let empty = Array::of(context.nothing(py)?, layout, foreign.read_only)?;
            results[place] = Some(Ok(empty));
            continue;
        }
        let (first, end) = (foreign.first, foreign.first + foreign.len);
        let found = match groups.last_mut().filter(|group| first < group.end) {
            Some(group) => group.extend(&context.0, end).map(|()| None),
            None => Group::around(&context.0, first, end).map(Some),
        };
        match found {
            Ok(new) => {
                groups.extend(new);
                let last = groups.last_mut().expect("found, or just added");
                last.members.push(place);
            }
            Err(error) => results[place] = Some(refusal(&error)),
        }
    }
    for group in groups {
        let mut owners = Vec::from_iter(group.members.iter().map(|place| &owners[*place]));
        // Store each owner only once, because many tensors may share one storage.
        owners.sort_unstable_by_key(|owner| owner.as_ptr());
        owners.dedup_by_key(|owner| owner.as_ptr());
        let lend = |memory: Arc<Memory>| context.1.lend(py, &context.0, &memory, &owners);
        let shared = match group.base {
            Base::Kept(shared) => Ok(shared),
            Base::Recycled(memory) => lend(memory),
            Base::Driver { number, is_one } => {
                let allocation = DriverAllocation {
                    address: group.start,
                    len: group.end - group.start,
                    number: if is_one { number } else { 0 },
                };
                let whole = context.1.adopt(&context.0, allocation);
                whole.and_then(lend)
            }
        };
        for place in group.members {
            let foreign = arrays[place];
            let shared = match &shared {
                Ok(shared) => Arc::clone(shared),
                Err(error) => {
                    results[place] = Some(refusal(error));
                    continue;
                }
            };
            let layout = Layout {
                offset: foreign.layout.offset + (foreign.first - group.start),
                ..foreign.layout.clone()
            };
            results[place] = Some(Array::of(shared, layout, foreign.read_only));
        }
    }
    Ok(results
        .into_iter()
        .map(|result| result.expect("each array is in a group, or has a result"))
        .collect())
}

/// Creates an array in the memory of `base` that has the layout of another library's array. The new
/// array's lowest byte is at byte `offset` of the memory.
#[pyfunction]
pub(crate) fn laid_over(base: &Array, array: &Foreign, offset: usize) -> PyResult<Array> {
    let layout = Layout {
        offset: array.layout.offset.saturating_add(offset),
        ..array.layout.clone()
    };
    let read_only = array.read_only || base.read_only;
    Array::of(Arc::clone(&base.memory), layout, read_only)
}

impl Group {
    /// Creates a group for the memory that contains the bytes from address `first` to address
    /// `end`.
    fn around(context: &crosshandle::Context, first: usize, end: usize) -> Result<Self> {
        let len = end - first;
        if let Some(shared) = find_live(first, len, false) {
            return Ok(Self::of(shared));
        }
        let DriverAllocation {
            address,
            len: has,
            number,
        } = match allocation_at(context, first) {
            Ok(allocation) => allocation,
            Err(error) => {
                let opened = find_live(first, len, true).ok_or(error)?;
                return Ok(Self::of(opened));
            }
        };
        let mut group = Self {
            base: Base::Driver {
                number,
                is_one: true,
            },
            start: address,
            end: address + has,
            members: Vec::new(),
        };
        group.extend(context, end)?;
        Ok(group)
    }

    fn of(shared: Arc<SharedMemory>) -> Self {
        let start = shared.address();
        let end = start + shared.memory.len();
        let base = match shared.recycled() {
            Some(memory) => Base::Recycled(memory),
            None => Base::Kept(shared),
        };
        Self {
            base,
            start,
            end,
            members: Vec::new(),
        }
    }

    /// Extends the group's memory to address `end`, by driver allocations that follow it without a
    /// gap. Fails if there is a gap, or if the memory is not from the driver.
    fn extend(&mut self, context: &crosshandle::Context, end: usize) -> Result<()> {
        if end <= self.end {
            return Ok(());
        }
        let Base::Driver { is_one, .. } = &mut self.base else {
            return Err(Error::InvalidArgument(
                "the array extends beyond the end of the memory that it starts in".into(),
            ));
        };
        // Change `self` only after all of the allocations were found.
        let mut reached = self.end;
        while reached < end {
            let next = allocation_at(context, reached)?;
            if next.address != reached {
                return Err(Error::InvalidArgument(format!(
                    "the array extends beyond the end of its allocation at {reached:#x}"
                )));
            }
            reached += next.len;
        }
        (self.end, *is_one) = (reached, false);
        Ok(())
    }
}

fn allocation_at(context: &crosshandle::Context, address: usize) -> Result<DriverAllocation> {
    let found = context.allocation_at(ptr::without_provenance(address))?;
    found.filter(|found| found.len > 0).ok_or_else(|| {
        let device = context.device();
        Error::InvalidArgument(format!("address {address:#x} is not in memory on {device}"))
    })
}

impl Wholes {
    /// Lends memory. The loan keeps `owners` alive as long as it is in use. If a loan of the same
    /// memory with the same owners is still in use, returns that loan instead of creating a new
    /// one.
    fn lend(
        &self,
        py: Python<'_>,
        context: &crosshandle::Context,
        memory: &Arc<Memory>,
        owners: &[&Py<PyAny>],
    ) -> Result<Arc<SharedMemory>> {
        let addresses = owners.iter().map(|owner| owner.as_ptr().addr()).collect();
        let loan = (Arc::as_ptr(memory).addr(), addresses);
        let mut lent = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        // A loan that is in use keeps its memory and its owners alive, so no other objects can have
        // the addresses in its key.
        if let Some(known) = lent.get(&loan).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let kept = Owners(owners.iter().map(|owner| owner.clone_ref(py)).collect());
        let part = memory.lend(.., kept)?;
        let made = Arc::new(SharedMemory::lent(part, context.clone()));
        if lent.len() == lent.capacity() {
            lent.retain(|_, known| known.strong_count() > 0);
        }
        lent.insert(loan, Arc::downgrade(&made));
        Ok(made)
    }

    /// Wraps one driver allocation, or several adjacent ones, as shared memory. If the same
    /// allocation was adopted before and is still in use, returns the existing memory, because
    /// importers may have mapped it already.
    fn adopt(
        &self,
        context: &crosshandle::Context,
        allocation: DriverAllocation,
    ) -> Result<Arc<Memory>> {
        let known = {
            let wholes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let known = wholes.get(&allocation.address);
            known
                .filter(|whole| whole.allocation == allocation)
                .and_then(|whole| whole.memory.upgrade())
        };
        if let Some(memory) = known {
            return Ok(memory);
        }
        let start = NonNull::new(ptr::with_exposed_provenance_mut(allocation.address))
            .ok_or_else(|| Error::InvalidArgument("there is no memory at address 0".into()))?;
        // SAFETY: the driver reported an allocation of `allocation.len` bytes at `start`. The
        // result is used only through loans, which keep the owners of the arrays in the allocation
        // alive. The library that allocated it frees it only after the last owner has been
        // destroyed.
        let memory = Arc::new(unsafe { Memory::adopt(context, start, allocation.len)? });
        let mut wholes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Remove unused entries only before the table grows, so that the cost of searching for them
        // is amortized.
        if wholes.len() == wholes.capacity() {
            wholes.retain(|_, whole| whole.memory.strong_count() > 0);
        }
        let whole = Whole {
            memory: Arc::downgrade(&memory),
            allocation,
        };
        wholes.insert(allocation.address, whole);
        Ok(memory)
    }
}
