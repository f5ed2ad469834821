//! Reservations of addresses, and the physical memory that is mapped into them.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use level_zero_sys::*;

use crate::call::{
    INVALID_ARGUMENT, INVALID_ENUMERATION, OUT_OF_DEVICE_MEMORY, Result, UNSUPPORTED_ALIGNMENT,
    UNSUPPORTED_SIZE, entry, present, write,
};
use crate::checks::{Check, misuse};
use crate::context::Context;
use crate::handles;
use crate::ledger::{self, Resource};
use crate::memory::GRANULE;
use crate::os::Mapping;
use crate::physical::Physical;
use crate::space::{self, Origin, Region, UseCount};
use crate::switches::switches;

/// A range of addresses that no other allocation gets.
pub(crate) struct Reservation {
    context: Arc<Context>,
    mapping: Mapping,
}

static RESERVATIONS: Mutex<BTreeMap<usize, Arc<Reservation>>> = Mutex::new(BTreeMap::new());

fn reservation(address: usize, size: usize) -> Option<Arc<Reservation>> {
    let all = RESERVATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let (base, found) = all.range(..=address).next_back()?;
    (address - base + size <= found.mapping.size()).then(|| found.clone())
}

/// Returns whether an access attribute allows reading and writing.
fn rights(access: ze_memory_access_attribute_t) -> Result<(bool, bool)> {
    match access {
        ze_memory_access_attribute_t::ZE_MEMORY_ACCESS_ATTRIBUTE_NONE => Ok((false, false)),
        ze_memory_access_attribute_t::ZE_MEMORY_ACCESS_ATTRIBUTE_READONLY => Ok((true, false)),
        ze_memory_access_attribute_t::ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE => Ok((true, true)),
        _ => Err(INVALID_ENUMERATION),
    }
}

/// Returns the mapping that covers exactly these addresses.
fn mapped(address: *const c_void, size: usize) -> Result<Arc<Region>> {
    let found = space::find(address.addr());
    found
        .filter(|region| region.base == address.addr() && region.size == size)
        .filter(|region| matches!(region.origin, Origin::Mapped { .. }))
        .ok_or(INVALID_ARGUMENT)
}

/// Returns the page size for a mapping of `size` bytes. Its address and size are multiples of the
/// page size.
fn page_size(size: usize) -> usize {
    if size >= 2 << 20 { 2 << 20 } else { GRANULE }
}

entry! {
    fn zeVirtualMemReserve(
        context: ze_context_handle_t,
        hint: *const c_void,
        size: usize,
        to: *mut *mut c_void,
    ) {
        let context = handles::get::<Context, _>(context)?;
        present(to)?;
        if size == 0 || !size.is_multiple_of(GRANULE) {
            return Err(UNSUPPORTED_SIZE);
        }
        let is_usable = !hint.is_null() && hint.addr().is_multiple_of(page_size(size));
        let wished = is_usable.then(|| Mapping::reserve_at(hint.addr(), size));
        let mapping = match wished.flatten() {
            Some(mapping) => mapping,
            None => Mapping::reserve(size, page_size(size))?,
        };
        let base = mapping.base().as_ptr();
        context.gain();
        ledger::add(Resource::Reservation);
        let reservation = Arc::new(Reservation { context, mapping });
        let mut all = RESERVATIONS.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(base.expose_provenance(), reservation);
        write(to, base.cast())
    }

    fn zeVirtualMemFree(context: ze_context_handle_t, address: *const c_void, size: usize) {
        let context = handles::get::<Context, _>(context)?;
        let mut all = RESERVATIONS.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |found: &&Arc<Reservation>| {
            found.mapping.size() == size && Arc::ptr_eq(&found.context, &context)
        };
        if all.get(&address.addr()).filter(fits).is_none() {
            misuse(Check::DoubleFree, &format!("{address:p} is no reservation of {size} bytes"));
            return Err(INVALID_ARGUMENT);
        }
        if !space::within(address.addr(), size).is_empty() {
            misuse(Check::DestroyInUse, "memory is mapped into the reservation");
            return Err(INVALID_ARGUMENT);
        }
        all.remove(&address.addr());
        ledger::remove(Resource::Reservation);
        context.lose();
        Ok(())
    }

    fn zeVirtualMemMap(
        context: ze_context_handle_t,
        address: *const c_void,
        size: usize,
        memory: ze_physical_mem_handle_t,
        offset: usize,
        access: ze_memory_access_attribute_t,
    ) {
        let context = handles::get::<Context, _>(context)?;
        let physical = handles::get::<Physical, _>(memory)?;
        physical.check()?;
        let (read, write) = rights(access)?;
        if !address.addr().is_multiple_of(GRANULE) || !offset.is_multiple_of(GRANULE) {
            return Err(UNSUPPORTED_ALIGNMENT);
        }
        let end = offset.checked_add(size);
        let fits = end.is_some_and(|end| end <= physical.segment.size());
        if size == 0 || !size.is_multiple_of(GRANULE) || !fits {
            return Err(UNSUPPORTED_SIZE);
        }
        if switches().missing("several_mappings") && physical.use_count.is_used() {
            return Err(INVALID_ARGUMENT);
        }
        let reservation = reservation(address.addr(), size).ok_or(INVALID_ARGUMENT)?;
        if !space::within(address.addr(), size).is_empty() {
            return Err(INVALID_ARGUMENT);
        }
        let place = &reservation.mapping;
        let done = place.place(address.addr(), size, &physical.segment, offset)
            && place.protect(address.addr(), size, read, write);
        if !done {
            place.clear(address.addr(), size);
            return Err(OUT_OF_DEVICE_MEMORY);
        }
        space::insert(Region {
            base: address.expose_provenance(),
            size,
            kind: ze_memory_type_t::ZE_MEMORY_TYPE_DEVICE,
            id: space::next_id(),
            context,
            device: Some(physical.device.clone()),
            origin: Origin::Mapped {
                _mapped: physical.use_count.take(),
                physical,
                reservation,
            },
            use_count: UseCount::default(),
        });
        match switches().missing("residency") {
            true => Err(OUT_OF_DEVICE_MEMORY),
            false => Ok(()),
        }
    }

    fn zeVirtualMemUnmap(context: ze_context_handle_t, address: *const c_void, size: usize) {
        handles::get::<Context, _>(context)?;
        let region = mapped(address, size).inspect_err(|_| {
            misuse(Check::DoubleFree, &format!("nothing of {size} bytes is mapped at {address:p}"));
        })?;
        let Origin::Mapped { reservation, .. } = &region.origin else {
            return Err(INVALID_ARGUMENT);
        };
        if region.use_count.is_used() {
            region.use_count.check("the mapping");
            return Err(INVALID_ARGUMENT);
        }
        space::remove(&region);
        match reservation.mapping.clear(region.base, size) {
            true => Ok(()),
            false => Err(OUT_OF_DEVICE_MEMORY),
        }
    }

    fn zeVirtualMemSetAccessAttribute(
        context: ze_context_handle_t,
        address: *const c_void,
        size: usize,
        access: ze_memory_access_attribute_t,
    ) {
        handles::get::<Context, _>(context)?;
        let (read, write) = rights(access)?;
        let region = mapped(address, size)?;
        let Origin::Mapped { reservation, .. } = &region.origin else {
            return Err(INVALID_ARGUMENT);
        };
        match reservation.mapping.protect(region.base, size, read, write) {
            true => Ok(()),
            false => Err(INVALID_ARGUMENT),
        }
    }
}
