//! Allocating and freeing in the order of a queue.
//!
//! Memory is allocated when the call is made, so that its address can be returned, and freed when
//! the command's turn has come.

use super::Submission;
use crate::boundary::{enter, not_null, put};
use crate::failure::{Failure, Result};
use crate::object::Shared;
use crate::usm::{Pool, Request, allocate};
use crosshandle::{Command, MemoryKind};
use std::ffi::c_void;
use std::sync::Arc;
use unified_runtime_sys::{
    UR_EXP_ASYNC_USM_ALLOC_FLAGS_MASK, ur_command_t, ur_event_handle_t,
    ur_exp_async_usm_alloc_properties_t, ur_queue_handle_t, ur_result_t, ur_usm_pool_handle_t,
};

/// Without a pool, memory comes from the one that the queue's device has at the moment.
///
/// # Safety
/// `pool` is null or a pool's handle, `properties` null or valid for reads, and `memory` null or
/// valid for a write.
unsafe fn enqueue(
    submission: Submission<'_>,
    (command, kind): (ur_command_t, MemoryKind),
    pool: ur_usm_pool_handle_t,
    len: usize,
    properties: *const ur_exp_async_usm_alloc_properties_t,
    memory: *mut *mut c_void,
) -> Result<()> {
    // SAFETY: as promised to this function.
    let (pool, properties) = unsafe {
        (
            Shared::<Pool>::from_handle(pool).ok().map(Shared::to_ref),
            properties.as_ref(),
        )
    };
    not_null(memory)?;
    let flags = properties.map_or(0, |properties| properties.flags);
    if flags & UR_EXP_ASYNC_USM_ALLOC_FLAGS_MASK != 0 {
        return Err(Failure::ENUMERATION);
    }
    let (context, device) = (submission.queue().context(), submission.queue().device());
    let pool = match pool {
        Some(pool) => pool,
        None => Pool::current_of(context, device)?,
    };
    let align = 0;
    let start = allocate(context, device, Some(&pool), &Request { kind, len, align })?;
    submission
        .submit(command, Command::marker(), false)
        .inspect_err(|_| drop(context.state().usm.free(start)))?;
    // SAFETY: as promised to this function.
    unsafe { put(memory, start) }
}

pub(super) unsafe extern "C" fn device(
    queue: ur_queue_handle_t,
    pool: ur_usm_pool_handle_t,
    size: usize,
    properties: *const ur_exp_async_usm_alloc_properties_t,
    count: u32,
    waits: *const ur_event_handle_t,
    memory: *mut *mut c_void,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    let what = (
        ur_command_t::UR_COMMAND_ENQUEUE_USM_DEVICE_ALLOC_EXP,
        MemoryKind::Device,
    );
    // SAFETY: the caller passes handles, properties and places for the results.
    enter(|| unsafe {
        let submission = Submission::new(queue, count, waits, event)?;
        enqueue(submission, what, pool, size, properties, memory)
    })
}

pub(super) unsafe extern "C" fn shared(
    queue: ur_queue_handle_t,
    pool: ur_usm_pool_handle_t,
    size: usize,
    properties: *const ur_exp_async_usm_alloc_properties_t,
    count: u32,
    waits: *const ur_event_handle_t,
    memory: *mut *mut c_void,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    let what = (
        ur_command_t::UR_COMMAND_ENQUEUE_USM_SHARED_ALLOC_EXP,
        MemoryKind::Shared,
    );
    // SAFETY: the caller passes handles, properties and places for the results.
    enter(|| unsafe {
        let submission = Submission::new(queue, count, waits, event)?;
        enqueue(submission, what, pool, size, properties, memory)
    })
}

pub(super) unsafe extern "C" fn host(
    queue: ur_queue_handle_t,
    pool: ur_usm_pool_handle_t,
    size: usize,
    properties: *const ur_exp_async_usm_alloc_properties_t,
    count: u32,
    waits: *const ur_event_handle_t,
    memory: *mut *mut c_void,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    let what = (
        ur_command_t::UR_COMMAND_ENQUEUE_USM_HOST_ALLOC_EXP,
        MemoryKind::Host,
    );
    // SAFETY: the caller passes handles, properties and places for the results.
    enter(|| unsafe {
        let submission = Submission::new(queue, count, waits, event)?;
        enqueue(submission, what, pool, size, properties, memory)
    })
}

/// The memory knows its pool.
pub(super) unsafe extern "C" fn free(
    queue: ur_queue_handle_t,
    _pool: ur_usm_pool_handle_t,
    memory: *mut c_void,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles and a place for one.
        let submission = unsafe { Submission::new(queue, count, waits, event) }?;
        not_null(memory)?;
        let state = Arc::clone(submission.queue().context().state());
        state.usm.check_allocated(memory)?;
        let address = memory.addr();
        let command = Command::call(move || {
            let freed = state.usm.free(std::ptr::without_provenance(address));
            freed.map(drop).map_err(|_| "the memory was freed already")
        });
        submission.submit(
            ur_command_t::UR_COMMAND_ENQUEUE_USM_FREE_EXP,
            command,
            false,
        )
    })
}
