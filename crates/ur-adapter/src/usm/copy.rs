//! Copies without a queue.

use crate::boundary::{enter, not_null};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::object::Shared;
use crosshandle::{Access, Command, EventOptions, Queue, QueueOrder};
use std::ffi::c_void;
use unified_runtime_sys::{ur_context_handle_t, ur_result_t};

pub(super) unsafe extern "C" fn memcpy(
    context: ur_context_handle_t,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle.
        let context = unsafe { Shared::<Context>::from_handle(context) }?;
        not_null(to)?;
        not_null(from)?;
        if size == 0 {
            return Err(Failure::SIZE);
        }
        let usm = &context.state().usm;
        // SAFETY: the caller vouches for the memory until this returns, and waits for the copy.
        let command = unsafe {
            Command::copy(
                usm.range(from, size, Access::ReadOnly)?,
                usm.range(to, size, Access::ReadWrite)?,
            )
        }?;
        let (_, inner) = context.first();
        let done = inner.create_event_with(EventOptions::new().shareable(false))?;
        queue_of(context)?.submit(command.signal(&done))?;
        Ok(done.wait()?)
    })
}

/// A queue in which copies don't wait for each other.
fn queue_of(context: &Context) -> Result<&Queue> {
    let place = &context.state().usm.copies;
    if let Some(queue) = place.get() {
        return Ok(queue);
    }
    let queue = context
        .first()
        .1
        .create_queue_with(QueueOrder::OutOfOrder)?;
    Ok(place.get_or_init(|| queue))
}
