//! Allocation and release of memory in queue order.
//!
//! The allocation call allocates the memory immediately and returns its address. The memory is
//! freed when the free command runs.

use super::submission::{Submission, WaitList};
use crate::abi::boundary::{MaybeIn, MaybeOut, Out, entry_points, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, MaybeHandle, Shared};
use crate::context::pools::Pool;
use crate::memory::usm::{Request, allocate};
use crate::queue::Queue;
use crosshandle::{Command, MemoryKind};
use std::ffi::c_void;
use std::sync::Arc;
use unified_runtime_sys::{
    UR_EXP_ASYNC_USM_ALLOC_FLAGS_MASK, ur_command_t, ur_event_handle_t,
    ur_exp_async_usm_alloc_properties_t, ur_usm_pool_handle_t,
};

/// Allocates memory, submits the command, and returns the address. If the caller names no pool, the
/// memory comes from the current pool of the queue's device.
fn enqueue(
    submission: Submission<'_>,
    command: ur_command_t,
    kind: MemoryKind,
    pool: Option<&Shared<Pool>>,
    len: usize,
    properties: Option<&ur_exp_async_usm_alloc_properties_t>,
) -> Result<*mut c_void> {
    let submission = submission
        .not_captured("graphs cannot record allocations: each run would need its own memory")?;
    let flags = properties.map_or(0, |properties| properties.flags);
    if flags & UR_EXP_ASYNC_USM_ALLOC_FLAGS_MASK != 0 {
        return Err(Failure::ENUMERATION);
    }
    let (context, device) = (submission.queue().context(), submission.queue().device());
    let pool = match pool {
        Some(pool) => pool.to_ref(),
        None => Pool::current_of(context, device)?,
    };
    let align = 0;
    let start = allocate(context, device, Some(&pool), &Request { kind, len, align })?;
    submission
        .submit(command, Command::marker(), false)
        .inspect_err(|_| drop(context.state().usm.free(start)))?;
    Ok(start)
}

/// Defines the entry points that allocate memory. They differ only in the kind of memory.
macro_rules! allocations {
    ($($name:ident: $kind:ident, $command:ident;)*) => {
        entry_points! {$(
            pub(super) fn $name(
                queue: Handle<Queue>,
                pool: MaybeHandle<Pool>,
                size: usize,
                properties: MaybeIn<ur_exp_async_usm_alloc_properties_t>,
                waits(count, first): WaitList,
                memory: Out<*mut c_void>,
                event: MaybeOut<ur_event_handle_t>,
            ) {
                let submission = Submission::new(queue, waits, event)?;
                let (command, kind) = (ur_command_t::$command, MemoryKind::$kind);
                memory.put(enqueue(submission, command, kind, pool, size, properties)?)
            }
        )*}
    };
}

allocations! {
    device: Device, UR_COMMAND_ENQUEUE_USM_DEVICE_ALLOC_EXP;
    shared: Shared, UR_COMMAND_ENQUEUE_USM_SHARED_ALLOC_EXP;
    host: Host, UR_COMMAND_ENQUEUE_USM_HOST_ALLOC_EXP;
}

entry_points! {
    /// Frees memory when the command runs. The `pool` argument is ignored, because the adapter
    /// knows the pool of the memory.
    pub(super) fn free(
        queue: Handle<Queue>,
        pool: ur_usm_pool_handle_t,
        memory: *mut c_void,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        not_null(memory)?;
        let submission = Submission::new(queue, waits, event)?;
        let state = Arc::clone(queue.context().state());
        state.usm.check_allocated(memory)?;
        let address = memory.addr();
        let command = Command::call(move || {
            let freed = state.usm.free(std::ptr::without_provenance(address));
            freed.map(drop).map_err(|_| "the memory has already been freed")
        });
        submission.submit(ur_command_t::UR_COMMAND_ENQUEUE_USM_FREE_EXP, command, false)
    }
}
