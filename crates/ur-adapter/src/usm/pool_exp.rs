//! The experimental part of memory pools: pools of one device, their numbers, and those that
//! devices have.

use super::Pool;
use super::pool::answer;
use crate::boundary::{enter, not_null, put};
use crate::context::Context;
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::object::{Shared, release};
use crate::query::Query;
use std::ffi::c_void;
use unified_runtime_sys::{
    ur_context_handle_t, ur_device_handle_t, ur_result_t, ur_usm_pool_desc_t, ur_usm_pool_handle_t,
    ur_usm_pool_info_t,
};

/// The objects behind the handles that most of these calls begin with.
///
/// # Safety
/// The handles are null or of such objects, alive during `'a`.
unsafe fn place<'a>(
    context: ur_context_handle_t,
    device: ur_device_handle_t,
) -> Result<(&'a Shared<Context>, &'a Shared<Device>)> {
    // SAFETY: as promised to this function.
    unsafe {
        Ok((
            Shared::<Context>::from_handle(context)?,
            Shared::<Device>::from_handle(device)?,
        ))
    }
}

pub(super) unsafe extern "C" fn create(
    context: ur_context_handle_t,
    device: ur_device_handle_t,
    desc: *mut ur_usm_pool_desc_t,
    created: *mut ur_usm_pool_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles, a description and a valid pointer.
        unsafe {
            let (context, device) = place(context, device)?;
            not_null(desc)?;
            not_null(created)?;
            let pool = Pool::for_device(context, device, desc)?;
            put(created, Shared::hand_out(pool))
        }
    })
}

pub(super) unsafe extern "C" fn destroy(
    context: ur_context_handle_t,
    device: ur_device_handle_t,
    pool: ur_usm_pool_handle_t,
) -> ur_result_t {
    let checked = enter(|| {
        // SAFETY: the caller passes handles.
        let (context, device, pool) = unsafe {
            let (context, device) = place(context, device)?;
            (context, device, Shared::<Pool>::from_handle(pool)?)
        };
        pool.on(context, device)?;
        if context.state().usm.device_pools.is_default(pool) {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
                "the default pool of a device stays as long as the context",
            ));
        }
        Ok(())
    });
    if checked != ur_result_t::UR_RESULT_SUCCESS {
        return checked;
    }
    // SAFETY: as promised to this function.
    unsafe { release::<Pool>(pool) }
}

/// The handle is the context's; the caller does not release it.
pub(super) unsafe extern "C" fn get_default_of_device(
    context: ur_context_handle_t,
    device: ur_device_handle_t,
    pool: *mut ur_usm_pool_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles and a valid pointer.
        unsafe {
            let (context, device) = place(context, device)?;
            let pools = &context.state().usm.device_pools;
            put(pool, pools.default_of(context, device)?.handle())
        }
    })
}

/// As [`get_default_of_device`].
pub(super) unsafe extern "C" fn get_of_device(
    context: ur_context_handle_t,
    device: ur_device_handle_t,
    pool: *mut ur_usm_pool_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles and a valid pointer.
        unsafe {
            let (context, device) = place(context, device)?;
            let pools = &context.state().usm.device_pools;
            put(pool, pools.current_of(context, device)?.handle())
        }
    })
}

/// The device forgets the pool when that is destroyed.
pub(super) unsafe extern "C" fn set_of_device(
    context: ur_context_handle_t,
    device: ur_device_handle_t,
    pool: ur_usm_pool_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles.
        let (context, device, pool) = unsafe {
            let (context, device) = place(context, device)?;
            (context, device, Shared::<Pool>::from_handle(pool)?)
        };
        let pools = &context.state().usm.device_pools;
        pools.set(context, device, pool)
    })
}

pub(super) unsafe extern "C" fn trim_to(
    context: ur_context_handle_t,
    device: ur_device_handle_t,
    pool: ur_usm_pool_handle_t,
    kept: usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles.
        let (context, device, pool) = unsafe {
            let (context, device) = place(context, device)?;
            (context, device, Shared::<Pool>::from_handle(pool)?)
        };
        pool.on(context, device)?.trim_to(kept);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn get_info(
    pool: ur_usm_pool_handle_t,
    name: ur_usm_pool_info_t,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter(|| {
        // All answers fit; the caller says no size.
        let size = if value.is_null() {
            0
        } else {
            size_of::<usize>()
        };
        // SAFETY: the caller passes a pool's handle and a place for the answer.
        let (pool, query) = unsafe {
            (
                Shared::<Pool>::from_handle(pool)?,
                Query::new(size, value, size_ret)?,
            )
        };
        answer(pool, name, query)
    })
}

/// The peaks can be set to 0, which lets them start again; what is reserved and used is what it
/// is.
pub(super) unsafe extern "C" fn set_info(
    pool: ur_usm_pool_handle_t,
    name: ur_usm_pool_info_t,
    value: *mut c_void,
    size: usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a pool's handle.
        let pool = unsafe { Shared::<Pool>::from_handle(pool) }?;
        not_null(value)?;
        if size < size_of::<usize>() {
            return Err(Failure::SIZE);
        }
        // SAFETY: the caller passes a value of this size.
        let value = unsafe { value.cast::<usize>().read_unaligned() };
        set(pool, name, value)
    })
}

fn set(pool: &Pool, name: ur_usm_pool_info_t, value: usize) -> Result<()> {
    let peak_to_zero = || {
        if value != 0 {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
                "a peak can only be set to 0",
            ));
        }
        Ok(())
    };
    match name {
        ur_usm_pool_info_t::UR_USM_POOL_INFO_RELEASE_THRESHOLD_EXP => {
            pool.members().for_each(|pool| pool.set_kept(value));
        }
        ur_usm_pool_info_t::UR_USM_POOL_INFO_RESERVED_HIGH_EXP => {
            peak_to_zero()?;
            pool.members().for_each(|pool| pool.reset_reserved_peak());
        }
        ur_usm_pool_info_t::UR_USM_POOL_INFO_USED_HIGH_EXP => {
            peak_to_zero()?;
            pool.members().for_each(|pool| pool.reset_used_peak());
        }
        ur_usm_pool_info_t::UR_USM_POOL_INFO_REFERENCE_COUNT
        | ur_usm_pool_info_t::UR_USM_POOL_INFO_CONTEXT
        | ur_usm_pool_info_t::UR_USM_POOL_INFO_MAXIMUM_SIZE_EXP
        | ur_usm_pool_info_t::UR_USM_POOL_INFO_RESERVED_CURRENT_EXP
        | ur_usm_pool_info_t::UR_USM_POOL_INFO_USED_CURRENT_EXP => {
            return Err(Failure::of(
                ur_result_t::UR_RESULT_ERROR_UNSUPPORTED_ENUMERATION,
            ));
        }
        _ => return Err(Failure::ENUMERATION),
    }
    Ok(())
}
