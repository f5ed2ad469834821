//! Finds the memory that belongs to an address of this process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use level_zero_sys::*;

use crate::call::{Few, INVALID_ARGUMENT, Result};
use crate::checks::{Check, misuse};
use crate::context::Context;
use crate::device::Device;
use crate::ipc::Exported;
use crate::ledger::{self, Resource};
use crate::os::{Mapping, Segment};
use crate::physical::Physical;
use crate::virtual_memory::Reservation;

/// The origin of memory, which decides how the program ends it.
pub(crate) enum Origin {
    /// This process allocated the memory, and frees it.
    Allocated {
        mapping: Mapping,
        segment: Segment,
        /// Whether the memory was allocated to be exported by a descriptor alone.
        exportable: bool,
        /// The descriptor that the memory's handles refer to, once the memory is exported.
        exported: Mutex<Option<Exported>>,
    },
    /// This process opened the memory from a handle, and closes it.
    Opened { _mapping: Mapping },
    /// Physical memory is mapped into a reservation, and is unmapped.
    Mapped {
        physical: Arc<Physical>,
        /// Marks the physical memory as used.
        _mapped: Use,
        reservation: Arc<Reservation>,
    },
}

/// A range of addresses with one piece of memory.
pub(crate) struct Region {
    pub(crate) base: usize,
    pub(crate) size: usize,
    pub(crate) kind: ze_memory_type_t,
    pub(crate) id: u64,
    pub(crate) context: Arc<Context>,
    pub(crate) device: Option<Arc<Device>>,
    pub(crate) origin: Origin,
    pub(crate) use_count: UseCount,
}

impl Region {
    fn resource(&self) -> Resource {
        match self.origin {
            Origin::Allocated { .. } => Resource::Memory,
            Origin::Opened { .. } => Resource::OpenedMemory,
            Origin::Mapped { .. } => Resource::Mapping,
        }
    }

    pub(crate) fn end(&self) -> usize {
        self.base + self.size
    }
}

/// Returns a new number that identifies a piece of memory in this process.
pub(crate) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The number of commands that use an object.
#[derive(Clone, Default)]
pub(crate) struct UseCount(Arc<AtomicUsize>);

impl UseCount {
    /// Counts one more command for as long as the result lives.
    pub(crate) fn take(&self) -> Use {
        self.0.fetch_add(1, Ordering::AcqRel);
        Use(self.0.clone())
    }

    pub(crate) fn is_used(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }

    /// Reports an object that is destroyed while commands use it.
    pub(crate) fn check(&self, what: &str) {
        if self.is_used() {
            misuse(Check::DestroyInUse, &format!("commands still use {what}"));
        }
    }
}

/// A command's use of an object.
pub(crate) struct Use(Arc<AtomicUsize>);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Default)]
struct Space {
    regions: BTreeMap<usize, Arc<Region>>,
    /// The addresses at which ended memory began, until new memory begins there.
    gone: BTreeMap<usize, Resource>,
}

static SPACE: RwLock<Space> = RwLock::new(Space {
    regions: BTreeMap::new(),
    gone: BTreeMap::new(),
});

pub(crate) fn insert(region: Region) -> Arc<Region> {
    let region = Arc::new(region);
    ledger::add(region.resource());
    region.context.gain();
    let mut space = SPACE.write().unwrap_or_else(PoisonError::into_inner);
    space
        .gone
        .retain(|base, _| !(region.base..region.end()).contains(base));
    space.regions.insert(region.base, region.clone());
    region
}

/// Removes a region. Commands that use it keep its memory.
pub(crate) fn remove(region: &Arc<Region>) {
    let mut space = SPACE.write().unwrap_or_else(PoisonError::into_inner);
    if space.regions.remove(&region.base).is_none() {
        return;
    }
    space.gone.insert(region.base, region.resource());
    drop(space);
    ledger::remove(region.resource());
    region.context.lose();
}

/// Returns the kind of memory that was at this address until it was freed, closed or unmapped.
pub(crate) fn gone(address: usize) -> Option<Resource> {
    let space = SPACE.read().unwrap_or_else(PoisonError::into_inner);
    space.gone.get(&address).copied()
}

pub(crate) fn find(address: usize) -> Option<Arc<Region>> {
    let space = SPACE.read().unwrap_or_else(PoisonError::into_inner);
    let (_, region) = space.regions.range(..=address).next_back()?;
    (address < region.end()).then(|| region.clone())
}

pub(crate) fn starting(address: usize, context: &Arc<Context>) -> Option<Arc<Region>> {
    find(address).filter(|region| region.base == address && Arc::ptr_eq(&region.context, context))
}

/// Returns the regions of a range. The list is empty for memory that the driver does not know.
pub(crate) fn find_range(address: usize, size: usize) -> Result<Few<Arc<Region>>> {
    let mut found = Few::new();
    let mut next = address;
    let end = address.checked_add(size).ok_or(INVALID_ARGUMENT)?;
    while next < end {
        match find(next) {
            Some(region) => {
                next = region.end();
                // An allocation does not continue into the next region, but adjacent mappings do.
                let alone = !matches!(region.origin, Origin::Mapped { .. });
                found.push(region);
                if !alone || next >= end {
                    continue;
                }
            }
            None if found.is_empty() => return Ok(found),
            None => {}
        }
        misuse(
            Check::OutOfBounds,
            &format!("{size} bytes at {address:#x} reach beyond {next:#x}, where memory ends"),
        );
        return Err(INVALID_ARGUMENT);
    }
    Ok(found)
}

/// Returns all regions that overlap a range.
pub(crate) fn within(address: usize, size: usize) -> Vec<Arc<Region>> {
    let space = SPACE.read().unwrap_or_else(PoisonError::into_inner);
    let end = address.saturating_add(size);
    let below = space.regions.range(..end).rev();
    below
        .take_while(|(_, region)| region.end() > address)
        .map(|(_, region)| region.clone())
        .collect()
}
