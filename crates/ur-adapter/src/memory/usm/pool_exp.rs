//! Experimental entry points for memory pools: pools for one device, properties of pools, and the
//! default and current pools of devices.

use super::pool::{answer, options};
use crate::abi::boundary::{InMut, Out, entry_points, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, Shared, release_once};
use crate::abi::query::NumberAnswer;
use crate::context::Context;
use crate::context::pools::Pool;
use crate::discovery::Device;
use std::ffi::c_void;
use unified_runtime_sys::{
    ur_result_t, ur_usm_pool_desc_t, ur_usm_pool_handle_t, ur_usm_pool_info_t,
};

entry_points! {
    pub(super) fn create(
        context: Handle<Context>,
        device: Handle<Device>,
        desc: InMut<ur_usm_pool_desc_t>,
        created: Out<ur_usm_pool_handle_t>,
    ) {
        // SAFETY: the caller passes a valid chain of descriptions.
        let options = unsafe { options(desc) }?;
        created.put(Shared::hand_out(Pool::for_device(context, device, options)?))
    }

    pub(super) fn destroy(context: Handle<Context>, device: Handle<Device>, pool: Handle<Pool>) {
        pool.on(context, device)?;
        if context.state().usm.device_pools.is_default(pool) {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
                "the default pool of a device stays as long as the context",
            ));
        }
        // SAFETY: the caller passes the handle of a living pool, and transfers one of UR's
        // references to this call.
        unsafe { release_once::<Pool>(pool.handle()) }
    }

    /// Returns the default pool of a device. The context owns the handle, so the caller must not
    /// release the handle.
    pub(super) fn get_default_of_device(
        context: Handle<Context>,
        device: Handle<Device>,
        pool: Out<ur_usm_pool_handle_t>,
    ) {
        let pools = &context.state().usm.device_pools;
        pool.put(pools.default_of(context, device)?.handle())
    }

    /// Returns the current pool of a device. The caller must not release the returned handle.
    pub(super) fn get_of_device(
        context: Handle<Context>,
        device: Handle<Device>,
        pool: Out<ur_usm_pool_handle_t>,
    ) {
        let pools = &context.state().usm.device_pools;
        pool.put(pools.current_of(context, device)?.handle())
    }

    /// Sets the current pool of a device. The pool stays current until it is replaced or destroyed.
    /// After its destruction, the default pool of the device is current again.
    pub(super) fn set_of_device(
        context: Handle<Context>,
        device: Handle<Device>,
        pool: Handle<Pool>,
    ) {
        let pools = &context.state().usm.device_pools;
        pools.set(context, device, pool)
    }

    pub(super) fn trim_to(
        context: Handle<Context>,
        device: Handle<Device>,
        pool: Handle<Pool>,
        kept: usize,
    ) {
        pool.on(context, device)?.trim_to(kept);
        Ok(())
    }

    pub(super) fn get_info(
        pool: Handle<Pool>,
        name: ur_usm_pool_info_t,
        query(value, size_ret): NumberAnswer,
    ) {
        answer(pool, name, query)
    }

    pub(super) fn set_info(
        pool: Handle<Pool>,
        name: ur_usm_pool_info_t,
        value: *mut c_void,
        size: usize,
    ) {
        not_null(value)?;
        if size < size_of::<usize>() {
            return Err(Failure::SIZE);
        }
        // SAFETY: the caller passes a value whose size was checked to be that of a `usize`.
        let value = unsafe { value.cast::<usize>().read_unaligned() };
        set(pool, name, value)
    }
}

/// Sets a property of a pool. A peak can be set only to 0, which restarts its measurement. The
/// reserved size and the used size cannot be set.
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
