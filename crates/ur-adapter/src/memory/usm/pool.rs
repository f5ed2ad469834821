//! Entry points for memory pools.

use crate::abi::boundary::{InMut, Out, entry_points};
use crate::abi::chain;
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, Shared};
use crate::abi::query::{Answer, Query};
use crate::context::Context;
use crate::context::pools::Pool;
use crosshandle::memory::{MemoryPool, MemoryPoolOptions};
use unified_runtime_sys::{
    UR_USM_POOL_FLAG_USE_NATIVE_MEMORY_POOL_EXP, UR_USM_POOL_FLAGS_MASK, ur_structure_type_t,
    ur_usm_pool_desc_t, ur_usm_pool_handle_t, ur_usm_pool_info_t, ur_usm_pool_limits_desc_t,
};

/// Converts the description of a memory pool from UR.
///
/// The meaning of the two limits depends on the pool. In a native pool, which the SYCL extension
/// for memory pools creates, they are the maximum size of the pool and the number of bytes that the
/// pool keeps. In other pools, they are the largest block that the pool keeps and the size of its
/// first segment.
///
/// # Safety
/// The chain that starts at `desc.pNext` must satisfy the contract of [`chain::each`], and each
/// structure must match its type.
pub(super) unsafe fn options(desc: &ur_usm_pool_desc_t) -> Result<MemoryPoolOptions> {
    if desc.flags & UR_USM_POOL_FLAGS_MASK != 0 {
        return Err(Failure::ENUMERATION);
    }
    let is_native = desc.flags & UR_USM_POOL_FLAG_USE_NATIVE_MEMORY_POOL_EXP != 0;
    let mut options = MemoryPoolOptions::new();
    if is_native {
        options = options.keep(0);
    }
    // SAFETY: the caller upholds this function's contract.
    for (stype, next) in unsafe { chain::each(desc.pNext) } {
        match stype {
            ur_structure_type_t::UR_STRUCTURE_TYPE_USM_POOL_LIMITS_DESC => {
                // SAFETY: the caller ensures that each structure in the chain matches its type.
                let limits = unsafe { &*next.cast::<ur_usm_pool_limits_desc_t>() };
                let (first, second) = (limits.maxPoolableSize, limits.minDriverAllocSize);
                options = match (is_native, first) {
                    (true, 0) => options.keep(second),
                    (true, limit) => options.limit(limit).keep(second),
                    (false, largest) => options.keep_each(largest).first_segment(second),
                };
            }
            ur_structure_type_t::UR_STRUCTURE_TYPE_USM_POOL_BUFFER_DESC => {
                return Err(Failure::unsupported(
                    "this adapter creates pools only from its own memory",
                ));
            }
            _ => {}
        }
    }
    Ok(options)
}

entry_points! {
    pub(super) fn create(
        context: Handle<Context>,
        desc: InMut<ur_usm_pool_desc_t>,
        created: Out<ur_usm_pool_handle_t>,
    ) {
        // SAFETY: the caller passes a valid chain of descriptions.
        let options = unsafe { options(desc) }?;
        created.put(Shared::hand_out(Pool::for_all_devices(context, options)?))
    }

    pub(super) fn get_info(
        pool: Handle<Pool>,
        name: ur_usm_pool_info_t,
        query(size, value, size_ret): Answer,
    ) {
        answer(pool, name, query)
    }
}

/// Writes a property of a pool to the caller's memory.
pub(super) fn answer(
    pool: &Shared<Pool>,
    name: ur_usm_pool_info_t,
    query: Query<'_>,
) -> Result<()> {
    let bytes = match name {
        ur_usm_pool_info_t::UR_USM_POOL_INFO_REFERENCE_COUNT => {
            return query.value(pool.references());
        }
        ur_usm_pool_info_t::UR_USM_POOL_INFO_CONTEXT => {
            return query.value(pool.context_handle());
        }
        ur_usm_pool_info_t::UR_USM_POOL_INFO_RELEASE_THRESHOLD_EXP => {
            pool.members().map(MemoryPool::kept).sum()
        }
        ur_usm_pool_info_t::UR_USM_POOL_INFO_MAXIMUM_SIZE_EXP => pool.limit(),
        ur_usm_pool_info_t::UR_USM_POOL_INFO_RESERVED_CURRENT_EXP => {
            pool.sum(|usage| usage.reserved)
        }
        ur_usm_pool_info_t::UR_USM_POOL_INFO_RESERVED_HIGH_EXP => {
            pool.sum(|usage| usage.reserved_peak)
        }
        ur_usm_pool_info_t::UR_USM_POOL_INFO_USED_CURRENT_EXP => pool.sum(|usage| usage.used),
        ur_usm_pool_info_t::UR_USM_POOL_INFO_USED_HIGH_EXP => pool.sum(|usage| usage.used_peak),
        _ => return Err(Failure::ENUMERATION),
    };
    query.value(bytes)
}
