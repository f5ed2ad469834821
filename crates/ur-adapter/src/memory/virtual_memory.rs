//! Virtual memory: reserved address ranges, into which physical memory can be mapped.

use super::physical::PhysicalMemory;
use crate::abi::boundary::{Out, entry_points, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, MaybeHandle};
use crate::abi::query::Answer;
use crate::context::Context;
use crate::discovery::Device;
use crosshandle::Access;
use crosshandle::virtual_memory::VirtualRange;
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_VIRTUAL_MEM_ACCESS_FLAG_NONE, UR_VIRTUAL_MEM_ACCESS_FLAG_READ_ONLY,
    UR_VIRTUAL_MEM_ACCESS_FLAG_READ_WRITE, UR_VIRTUAL_MEM_ACCESS_FLAGS_MASK,
    ur_virtual_mem_access_flags_t, ur_virtual_mem_dditable_t, ur_virtual_mem_granularity_info_t,
    ur_virtual_mem_info_t,
};

/// Converts UR's access flags. Returns `None` if the flags allow no access.
fn access(flags: ur_virtual_mem_access_flags_t) -> Result<Option<Access>> {
    if flags & UR_VIRTUAL_MEM_ACCESS_FLAGS_MASK != 0 {
        return Err(Failure::ENUMERATION);
    }
    if flags & UR_VIRTUAL_MEM_ACCESS_FLAG_READ_WRITE != 0 {
        return Ok(Some(Access::ReadWrite));
    }
    Ok((flags & UR_VIRTUAL_MEM_ACCESS_FLAG_READ_ONLY != 0).then_some(Access::ReadOnly))
}

entry_points! {
    fn get_granularity(
        context: Handle<Context>,
        device: MaybeHandle<Device>,
        allocation_size: usize,
        name: ur_virtual_mem_granularity_info_t,
        query(size, value, size_ret): Answer,
    ) {
        let of = |device: &Device| device.inner().info().granularity;
        let granularity = match device {
            Some(device) => {
                context.on(device)?;
                of(device)
            }
            // Each granularity is a power of two, so the largest one is a multiple of all others.
            None => context.devices().map(|device| of(device)).max().unwrap_or(1),
        };
        match name {
            ur_virtual_mem_granularity_info_t::UR_VIRTUAL_MEM_GRANULARITY_INFO_MINIMUM
            | ur_virtual_mem_granularity_info_t::UR_VIRTUAL_MEM_GRANULARITY_INFO_RECOMMENDED => {
                query.value(granularity)
            }
            _ => Err(Failure::ENUMERATION),
        }
    }

    fn reserve(
        context: Handle<Context>,
        wish: *const c_void,
        size: usize,
        start: Out<*mut c_void>,
    ) {
        let range = VirtualRange::reserve_at(context.first().1, wish.cast(), size)?;
        let reserved = range.as_ptr().cast();
        context.state().ranges.add(range);
        start.put(reserved)
    }

    /// Removes all mappings from the range, and frees its addresses.
    fn free(context: Handle<Context>, start: *const c_void, size: usize) {
        not_null(start)?;
        drop(context.state().ranges.remove(start, size)?);
        Ok(())
    }

    fn map(
        context: Handle<Context>,
        start: *const c_void,
        size: usize,
        memory: Handle<PhysicalMemory>,
        offset: usize,
        flags: ur_virtual_mem_access_flags_t,
    ) {
        not_null(start)?;
        let access = access(flags)?;
        memory.check_context(context)?;
        let (range, place) = context.state().ranges.find(start, size)?;
        Ok(range.map(place, memory.inner(), offset..offset.saturating_add(size), access)?)
    }

    fn unmap(context: Handle<Context>, start: *const c_void, size: usize) {
        not_null(start)?;
        let (range, place) = context.state().ranges.find(start, size)?;
        Ok(range.unmap(place..place.saturating_add(size))?)
    }

    fn set_access(
        context: Handle<Context>,
        start: *const c_void,
        size: usize,
        flags: ur_virtual_mem_access_flags_t,
    ) {
        not_null(start)?;
        let access = access(flags)?;
        let (range, place) = context.state().ranges.find(start, size)?;
        Ok(range.set_access(place..place.saturating_add(size), access)?)
    }

    /// Writes a property of a mapped range. If the range contains different mappings, the property
    /// is that of the first byte.
    fn get_info(
        context: Handle<Context>,
        start: *const c_void,
        size: usize,
        name: ur_virtual_mem_info_t,
        query(value_size, value, size_ret): Answer,
    ) {
        not_null(start)?;
        if name != ur_virtual_mem_info_t::UR_VIRTUAL_MEM_INFO_ACCESS_MODE {
            return Err(Failure::ENUMERATION);
        }
        let (range, place) = context.state().ranges.find(start, size)?;
        query.value(match range.access(place) {
            Some(Access::ReadWrite) => UR_VIRTUAL_MEM_ACCESS_FLAG_READ_WRITE,
            Some(Access::ReadOnly) => UR_VIRTUAL_MEM_ACCESS_FLAG_READ_ONLY,
            None if range.is_mapped(place) => UR_VIRTUAL_MEM_ACCESS_FLAG_NONE,
            None => return Err(Failure::argument("no memory is mapped at this address")),
        })
    }
}

/// The entry points for virtual memory.
pub(crate) const TABLE: ur_virtual_mem_dditable_t = ur_virtual_mem_dditable_t {
    pfnGranularityGetInfo: Some(get_granularity),
    pfnReserve: Some(reserve),
    pfnFree: Some(free),
    pfnMap: Some(map),
    pfnUnmap: Some(unmap),
    pfnSetAccess: Some(set_access),
    pfnGetInfo: Some(get_info),
};
