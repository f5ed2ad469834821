//! Virtual memory: addresses, into which physical memory is mapped.

use crate::boundary::{enter, not_null, put};
use crate::context::Context;
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::object::Shared;
use crate::physical_memory::PhysicalMemory;
use crate::query::Query;
use crosshandle::{Access, VirtualRange};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use unified_runtime_sys::{
    UR_VIRTUAL_MEM_ACCESS_FLAG_NONE, UR_VIRTUAL_MEM_ACCESS_FLAG_READ_ONLY,
    UR_VIRTUAL_MEM_ACCESS_FLAG_READ_WRITE, UR_VIRTUAL_MEM_ACCESS_FLAGS_MASK, ur_context_handle_t,
    ur_device_handle_t, ur_physical_mem_handle_t, ur_result_t, ur_virtual_mem_access_flags_t,
    ur_virtual_mem_dditable_t, ur_virtual_mem_granularity_info_t, ur_virtual_mem_info_t,
};

/// The address ranges that a context has reserved, by where they start.
#[derive(Default)]
pub(crate) struct Ranges {
    reserved: Mutex<BTreeMap<usize, Arc<VirtualRange>>>,
}

impl Ranges {
    /// The range that contains `size` bytes from an address on, and how far inside they start.
    fn find(&self, start: *const c_void, size: usize) -> Result<(Arc<VirtualRange>, usize)> {
        let reserved = self.reserved();
        let found = reserved.range(..=start.addr()).next_back();
        found
            .and_then(|(first, range)| {
                let offset = start.addr() - first;
                let is_inside = offset < range.len() && size <= range.len() - offset;
                is_inside.then(|| (Arc::clone(range), offset))
            })
            .ok_or_else(|| {
                Failure::argument(format!(
                    "the {size} bytes at {start:p} are not in one range that was reserved here"
                ))
            })
    }

    fn add(&self, range: VirtualRange) {
        let start = range.as_ptr().addr();
        self.reserved().insert(start, Arc::new(range));
    }

    /// Takes the range with exactly this place away, to be dropped.
    fn remove(&self, start: *const c_void, size: usize) -> Result<Arc<VirtualRange>> {
        let mut reserved = self.reserved();
        let found = reserved.get(&start.addr());
        if found.is_none_or(|range| range.len() != size) {
            return Err(Failure::argument(format!(
                "no range of {size} bytes at {start:p} was reserved here"
            )));
        }
        Ok(reserved.remove(&start.addr()).expect("just found"))
    }

    fn reserved(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<VirtualRange>>> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What may be done with memory, by UR's flags.
fn access(flags: ur_virtual_mem_access_flags_t) -> Result<Option<Access>> {
    if flags & UR_VIRTUAL_MEM_ACCESS_FLAGS_MASK != 0 {
        return Err(Failure::ENUMERATION);
    }
    if flags & UR_VIRTUAL_MEM_ACCESS_FLAG_READ_WRITE != 0 {
        return Ok(Some(Access::ReadWrite));
    }
    Ok((flags & UR_VIRTUAL_MEM_ACCESS_FLAG_READ_ONLY != 0).then_some(Access::ReadOnly))
}

unsafe extern "C" fn get_granularity(
    context: ur_context_handle_t,
    device: ur_device_handle_t,
    _allocation_size: usize,
    name: ur_virtual_mem_granularity_info_t,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles and a place for the answer.
        let (context, device, query) = unsafe {
            (
                Shared::<Context>::from_handle(context)?,
                Shared::<Device>::from_handle(device).ok(),
                Query::new(size, value, size_ret)?,
            )
        };
        let of = |device: &Device| device.inner().info().granularity;
        let granularity = match device {
            Some(device) => {
                context.on(device)?;
                of(device)
            }
            // All are powers of two, so that the largest suits every device.
            None => context
                .devices()
                .map(|device| of(device))
                .max()
                .unwrap_or(1),
        };
        match name {
            ur_virtual_mem_granularity_info_t::UR_VIRTUAL_MEM_GRANULARITY_INFO_MINIMUM
            | ur_virtual_mem_granularity_info_t::UR_VIRTUAL_MEM_GRANULARITY_INFO_RECOMMENDED => {
                query.value(granularity)
            }
            _ => Err(Failure::ENUMERATION),
        }
    })
}

unsafe extern "C" fn reserve(
    context: ur_context_handle_t,
    wish: *const c_void,
    size: usize,
    start: *mut *mut c_void,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle.
        let context = unsafe { Shared::<Context>::from_handle(context) }?;
        not_null(start)?;
        let range = context.first().1.reserve_at(wish.cast(), size)?;
        let reserved = range.as_ptr().cast();
        context.state().ranges.add(range);
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(start, reserved) }
    })
}

/// What is still mapped in the range is unmapped.
unsafe extern "C" fn free(
    context: ur_context_handle_t,
    start: *const c_void,
    size: usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle.
        let context = unsafe { Shared::<Context>::from_handle(context) }?;
        not_null(start)?;
        drop(context.state().ranges.remove(start, size)?);
        Ok(())
    })
}

unsafe extern "C" fn map(
    context: ur_context_handle_t,
    start: *const c_void,
    size: usize,
    memory: ur_physical_mem_handle_t,
    offset: usize,
    flags: ur_virtual_mem_access_flags_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles.
        let (context, memory) = unsafe {
            (
                Shared::<Context>::from_handle(context)?,
                Shared::<PhysicalMemory>::from_handle(memory)?,
            )
        };
        not_null(start)?;
        let access = access(flags)?;
        memory.check_context(context)?;
        let (range, place) = context.state().ranges.find(start, size)?;
        Ok(range.map(
            place,
            memory.inner(),
            offset..offset.saturating_add(size),
            access,
        )?)
    })
}

unsafe extern "C" fn unmap(
    context: ur_context_handle_t,
    start: *const c_void,
    size: usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle.
        let context = unsafe { Shared::<Context>::from_handle(context) }?;
        not_null(start)?;
        let (range, place) = context.state().ranges.find(start, size)?;
        Ok(range.unmap(place..place.saturating_add(size))?)
    })
}

unsafe extern "C" fn set_access(
    context: ur_context_handle_t,
    start: *const c_void,
    size: usize,
    flags: ur_virtual_mem_access_flags_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle.
        let context = unsafe { Shared::<Context>::from_handle(context) }?;
        not_null(start)?;
        let access = access(flags)?;
        let (range, place) = context.state().ranges.find(start, size)?;
        Ok(range.set_access(place..place.saturating_add(size), access)?)
    })
}

/// What may be done with the first byte counts, if the mappings differ.
unsafe extern "C" fn get_info(
    context: ur_context_handle_t,
    start: *const c_void,
    size: usize,
    name: ur_virtual_mem_info_t,
    value_size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle.
        let context = unsafe { Shared::<Context>::from_handle(context) }?;
        not_null(start)?;
        // SAFETY: the caller passes a place for the answer.
        let query = unsafe { Query::new(value_size, value, size_ret) }?;
        if name != ur_virtual_mem_info_t::UR_VIRTUAL_MEM_INFO_ACCESS_MODE {
            return Err(Failure::ENUMERATION);
        }
        let (range, place) = context.state().ranges.find(start, size)?;
        query.value(match range.access(place) {
            Some(Access::ReadWrite) => UR_VIRTUAL_MEM_ACCESS_FLAG_READ_WRITE,
            Some(Access::ReadOnly) => UR_VIRTUAL_MEM_ACCESS_FLAG_READ_ONLY,
            None if range.is_mapped(place) => UR_VIRTUAL_MEM_ACCESS_FLAG_NONE,
            None => return Err(Failure::argument("nothing is mapped there")),
        })
    })
}

pub(crate) const TABLE: ur_virtual_mem_dditable_t = ur_virtual_mem_dditable_t {
    pfnGranularityGetInfo: Some(get_granularity),
    pfnReserve: Some(reserve),
    pfnFree: Some(free),
    pfnMap: Some(map),
    pfnUnmap: Some(unmap),
    pfnSetAccess: Some(set_access),
    pfnGetInfo: Some(get_info),
};
