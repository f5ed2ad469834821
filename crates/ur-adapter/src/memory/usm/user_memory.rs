//! Entry points that register the user's memory with a context.

use crate::abi::boundary::{MaybeIn, entry_points, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::Handle;
use crate::context::Context;
use crate::context::allocations::Kind;
use crosshandle::Access;
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_EXP_USM_HOST_ALLOC_REGISTER_FLAG_READ_ONLY, UR_EXP_USM_HOST_ALLOC_REGISTER_FLAGS_MASK,
    ur_exp_usm_host_alloc_register_properties_t, ur_result_t,
};

/// The smallest page size of all supported machines, in bytes.
const SMALLEST_PAGE: usize = 4096;

/// Returns `UNSUPPORTED_FEATURE` if a device in the context cannot access host memory without a
/// registration by the driver.
fn check_devices(context: &Context) -> Result<()> {
    let reaches_all = context
        .devices()
        .all(|device| device.inner().info().capabilities.unified_memory);
    if reaches_all {
        return Ok(());
    }
    Err(Failure::unsupported(
        "a device of this context cannot access the host's own memory",
    ))
}

/// Returns whether a program could own `size` bytes at this address.
fn can_be(memory: *const c_void, size: usize) -> bool {
    size != 0 && size <= isize::MAX as usize && memory.addr().checked_add(size).is_some()
}

entry_points! {
    pub(super) fn register(
        context: Handle<Context>,
        memory: *mut c_void,
        size: usize,
        properties: MaybeIn<ur_exp_usm_host_alloc_register_properties_t>,
    ) {
        not_null(memory)?;
        let flags = properties.map_or(0, |properties| properties.flags);
        if flags & UR_EXP_USM_HOST_ALLOC_REGISTER_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        let check_pages = |page: usize| {
            if (memory.addr() | size).is_multiple_of(page) && can_be(memory, size) {
                return Ok(());
            }
            Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
                format!("registered memory consists of whole pages of {page} bytes"),
            ))
        };
        // Errors that would occur on every device take precedence over errors of this context's
        // devices.
        check_pages(SMALLEST_PAGE)?;
        check_devices(context)?;
        check_pages(context.first().0.inner().info().granularity)?;
        let access = if flags & UR_EXP_USM_HOST_ALLOC_REGISTER_FLAG_READ_ONLY != 0 {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        };
        if !context.state().usm.add_of_user(Kind::Registered(access), memory, size) {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
                "part of this memory is already registered or allocated in this context",
            ));
        }
        Ok(())
    }

    pub(super) fn unregister(context: Handle<Context>, memory: *mut c_void) {
        not_null(memory)?;
        let is_registered = |kind| matches!(kind, Kind::Registered(_));
        let removed = context.state().usm.remove(memory, is_registered);
        removed.map(drop).ok_or_else(|| {
            Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
                "no registered memory starts at this address",
            )
        })
    }

    /// Imports the user's memory. If the context already has part of the memory in its table, the
    /// call has no effect.
    pub(super) fn import(context: Handle<Context>, memory: *mut c_void, size: usize) {
        not_null(memory)?;
        if !can_be(memory, size) {
            return Err(Failure::SIZE);
        }
        check_devices(context)?;
        context.state().usm.add_of_user(Kind::Imported, memory, size);
        Ok(())
    }

    /// Releases imported memory. If no imported memory starts at this address, the call has no
    /// effect.
    pub(super) fn release(context: Handle<Context>, memory: *mut c_void) {
        not_null(memory)?;
        drop(context.state().usm.remove(memory, |kind| kind == Kind::Imported));
        Ok(())
    }
}
