//! Queries about pointers to USM.

use crate::abi::boundary::{entry_points, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, Ref};
use crate::abi::query::{Answer, Query};
use crate::context::Context;
use crate::context::allocations::Known;
use crate::context::pools::Pool;
use std::ffi::c_void;
use std::ptr;
use unified_runtime_sys::{ur_device_handle_t, ur_result_t, ur_usm_alloc_info_t, ur_usm_type_t};

/// The properties of a pointer that a query can request.
struct Facts {
    base: *const c_void,
    size: usize,
    usm_type: ur_usm_type_t,
    device: ur_device_handle_t,
    pool: Option<Ref<Pool>>,
}

impl Facts {
    fn new(base: *const c_void, found: &Known) -> Self {
        let allocation = &found.thing;
        Self {
            base,
            size: found.len,
            usm_type: allocation.kind.usm_type(),
            device: allocation.device(),
            pool: allocation.pool(),
        }
    }
}

entry_points! {
    pub(super) fn get(
        context: Handle<Context>,
        pointer: *const c_void,
        name: ur_usm_alloc_info_t,
        query(size, value, size_ret): Answer,
    ) {
        not_null(pointer)?;
        let facts = context.state().usm.with(pointer, |offset, found| {
            Facts::new(pointer.wrapping_byte_sub(offset), found)
        });
        answer(facts, name, query)
    }
}

/// Writes a property of a pointer to the caller's memory. If the pointer is not in the context's
/// memory, only a query for its type succeeds.
fn answer(facts: Option<Facts>, name: ur_usm_alloc_info_t, query: Query<'_>) -> Result<()> {
    if name == ur_usm_alloc_info_t::UR_USM_ALLOC_INFO_TYPE {
        let unknown = ur_usm_type_t::UR_USM_TYPE_UNKNOWN;
        return query.value(facts.map_or(unknown, |facts| facts.usm_type).0);
    }
    if name.0 > ur_usm_alloc_info_t::UR_USM_ALLOC_INFO_POOL.0 {
        return Err(Failure::ENUMERATION);
    }
    let facts = facts.ok_or_else(|| {
        Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
            "this pointer is not in any allocation of this context",
        )
    })?;
    match name {
        ur_usm_alloc_info_t::UR_USM_ALLOC_INFO_BASE_PTR => query.value(facts.base),
        ur_usm_alloc_info_t::UR_USM_ALLOC_INFO_SIZE => query.value(facts.size),
        ur_usm_alloc_info_t::UR_USM_ALLOC_INFO_DEVICE => query.value(facts.device),
        _ => query.value(facts.pool.map_or(ptr::null_mut(), |pool| pool.handle())),
    }
}
