//! Queries about the memory at an address.

use std::ffi::c_void;

use level_zero_sys::*;

use crate::call::{INVALID_ARGUMENT, entry, read, write};
use crate::context::Context;
use crate::device::handle_of;
use crate::handles;
use crate::memory::GRANULE;
use crate::os::PAGE;
use crate::space::{self, Origin};

entry! {
    fn zeMemGetAllocProperties(
        context: ze_context_handle_t,
        address: *const c_void,
        properties: *mut ze_memory_allocation_properties_t,
        device: *mut ze_device_handle_t,
    ) {
        handles::get::<Context, _>(context)?;
        let mut value = read(properties.cast_const())?;
        let region = space::find(address.addr());
        value.type_ = ze_memory_type_t::ZE_MEMORY_TYPE_UNKNOWN;
        value.id = 0;
        value.pageSize = 0;
        if let Some(region) = &region {
            value.type_ = region.kind;
            value.id = region.id;
            value.pageSize = match region.kind {
                ze_memory_type_t::ZE_MEMORY_TYPE_DEVICE => GRANULE as u64,
                _ => PAGE as u64,
            };
        }
        write(properties, value)?;
        if !value.pNext.is_null() {
            match region.as_ref().map(|region| &region.origin) {
                Some(Origin::Mapped { physical, .. }) => physical.export(value.pNext)?,
                _ => return Err(INVALID_ARGUMENT),
            }
        }
        if device.is_null() {
            return Ok(());
        }
        let owner = region.and_then(|region| region.device.clone());
        let owner = owner.map(|owner| handle_of(&owner)).transpose()?;
        write(device, owner.unwrap_or(std::ptr::null_mut()))
    }

    fn zeMemGetAddressRange(
        context: ze_context_handle_t,
        address: *const c_void,
        base: *mut *mut c_void,
        size: *mut usize,
    ) {
        handles::get::<Context, _>(context)?;
        let region = space::find(address.addr());
        let region = region.ok_or(ze_result_t::ZE_RESULT_ERROR_ADDRESS_NOT_FOUND)?;
        if !base.is_null() {
            write(base, std::ptr::with_exposed_provenance_mut(region.base))?;
        }
        if !size.is_null() {
            write(size, region.size)?;
        }
        Ok(())
    }
}
