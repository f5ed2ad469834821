//! Sharing the memory of other libraries' arrays without a copy.
//!
//! An array may be in memory that this library allocated (for example for torch or CuPy) or opened
//! from a handle. It may also be in an allocation that the array's own library made with the
//! driver. Each call makes one shared memory for each allocation that contains arrays, so importers
//! open a tree of hundreds of tensors with one handle. The owners of the arrays are kept alive
//! until this process has released that memory and no other process has it open.

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

/// The allocations of a context that were adopted and are still in use, by address.
#[derive(Default)]
pub(crate) struct Wholes(
    Mutex<HashMap<usize, Whole>>,
    Mutex<HashMap<Loan, Weak<SharedMemory>>>,
);

/// The key of a loan: the address of the memory, and the addresses of the owner objects.
type Loan = (usize, Vec<usize>);

struct Whole {
    memory: Weak<Memory>,
    allocation: DriverAllocation,
}

/// The memory that contains several arrays of one call.
enum Base {
    /// Memory whose parts are not reused before all of it is freed. It is shared directly.
    Kept(Arc<SharedMemory>),
    /// Memory that an allocator divides and reuses. The part with the arrays is lent, and the loan
    /// keeps the arrays' owners alive.
    Recycled(Arc<Memory>),
    /// One allocation of the driver, or several adjacent ones, as in torch's expandable segments.
    /// Its library may reuse parts of it, so the part with the arrays is lent.
    Driver { number: u64, is_one: bool },
}

/// Arrays that are in the same memory.
struct Group {
    base: Base,
    start: usize,
    end: usize,
    /// The indexes of the arrays in the call's list.
    members: Vec<usize>,
}

/// Makes arrays of shared memory from other libraries' arrays.
///
/// Returns an array for each of them, or the exception that says why other processes cannot access
/// its memory. `owners` are the objects that keep the arrays' bytes alive.
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
    let mut results: Vec<Option<Bound<'py, PyAny>>> = vec![None; arrays.len()];
    let refusal = |error: Error| {
        exception(py, &error)
            .into_value(py)
            .into_bound(py)
            .into_any()
    };
    owners::let_go_now();
    let mut groups: Vec<Group> = Vec::new();
    // Sorted by address, so that arrays in the same memory are adjacent.
    let mut order = Vec::from_iter(0..arrays.len());
    order.sort_unstable_by_key(|place| arrays[*place].get().first);
    for place in order {
        let foreign = arrays[place].get();
        if foreign.len == 0 {
            let layout = Layout {
                offset: 0,
                ..foreign.layout.clone()
            };
            let empty = Array::of(context.nothing(py)?, layout, foreign.read_only)?;
            results[place] = Some(Bound::new(py, empty)?.into_any());
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
            Err(error) => results[place] = Some(refusal(error)),
        }
    }
    for group in groups {
        let mut owners = Vec::from_iter(group.members.iter().map(|place| &owners[*place]));
        // Each owner is stored once, because many tensors share a storage.
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
            let foreign = arrays[place].get();
            let shared = match &shared {
                Ok(shared) => Arc::clone(shared),
                Err(error) => {
                    results[place] = Some(refusal(error.clone()));
                    continue;
                }
            };
            let layout = Layout {
                offset: foreign.layout.offset + (foreign.first - group.start),
                ..foreign.layout.clone()
            };
            results[place] = Some(match Array::of(shared, layout, foreign.read_only) {
                Ok(array) => Bound::new(py, array)?.into_any(),
                Err(error) => error.into_value(py).into_bound(py).into_any(),
            });
        }
    }
    Ok(results
        .into_iter()
        .map(|result| result.expect("each array is in a group, or has a result"))
        .collect())
}

/// Makes an array in the memory of `base`, with the layout of another library's array. The array's
/// lowest byte is at offset `offset`.
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
    /// Returns the memory that contains the bytes between two addresses.
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

    /// Extends the memory to address `end`, by allocations that follow it without a gap.
    fn extend(&mut self, context: &crosshandle::Context, end: usize) -> Result<()> {
        if end <= self.end {
            return Ok(());
        }
        let Base::Driver { is_one, .. } = &mut self.base else {
            return Err(Error::InvalidArgument(
                "the array goes beyond the end of the memory that it starts in".into(),
            ));
        };
        // `self` changes only if all of the allocations exist.
        let mut reached = self.end;
        while reached < end {
            let next = allocation_at(context, reached)?;
            if next.address != reached {
                return Err(Error::InvalidArgument(format!(
                    "the array goes beyond the end of its allocation at {reached:#x}"
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
        Error::InvalidArgument(format!("{address:#x} is no address of memory on {device}"))
    })
}

impl Wholes {
    /// Lends memory, and keeps the owners of its bytes alive as long as the loan is in use. If the
    /// same loan is still in use, returns it, so that sharing the same arrays again creates nothing
    /// new.
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
        // A live loan keeps the memory and the owners alive, so no other objects can have their
        // addresses.
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

    /// Adopts one allocation, or several adjacent ones. If the same allocation was adopted before
    /// and is still in use, returns that memory, because importers have it mapped already.
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
        // SAFETY: each loan of the result keeps the owners of the arrays in it, and their library
        // frees the allocation after the last owner has ended.
        let memory = Arc::new(unsafe { Memory::adopt(context, start, allocation.len)? });
        let mut wholes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Unused entries are removed only before the table grows, so that the cost of the search is
        // amortized.
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
