//! What is known of a pointer.

use super::Pool;
use super::allocations::Known;
use crate::boundary::{enter, not_null};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::object::{Ref, Shared};
use crate::query::Query;
use std::ffi::c_void;
use std::ptr;
use unified_runtime_sys::{
    ur_context_handle_t, ur_device_handle_t, ur_result_t, ur_usm_alloc_info_t, ur_usm_type_t,
};

/// What there is to say of memory.
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

pub(super) unsafe extern "C" fn get(
    context: ur_context_handle_t,
    pointer: *const c_void,
    name: ur_usm_alloc_info_t,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle.
        let context = unsafe { Shared::<Context>::from_handle(context) }?;
        not_null(pointer)?;
        // SAFETY: the caller passes a place for the answer.
        let query = unsafe { Query::new(size, value, size_ret) }?;
        let facts = context.state().usm.with(pointer, |offset, found| {
            Facts::new(pointer.wrapping_byte_sub(offset), found)
        });
        answer(facts, name, query)
    })
}

/// That a pointer is not ours is an answer, not a mistake; but then there is nothing else to say.
fn answer(facts: Option<Facts>, name: ur_usm_alloc_info_t, query: Query) -> Result<()> {
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
            "this pointer points into no allocation of this context",
        )
    })?;
    match name {
        ur_usm_alloc_info_t::UR_USM_ALLOC_INFO_BASE_PTR => query.value(facts.base),
        ur_usm_alloc_info_t::UR_USM_ALLOC_INFO_SIZE => query.value(facts.size),
        ur_usm_alloc_info_t::UR_USM_ALLOC_INFO_DEVICE => query.value(facts.device),
        _ => query.value(facts.pool.map_or(ptr::null_mut(), |pool| pool.handle())),
    }
}
