//! Copies for which the caller names no queue.

use crate::abi::boundary::{entry_points, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::Handle;
use crate::context::Context;
use crosshandle::{Access, Command, EventOptions, Queue, QueueOrder};
use std::ffi::c_void;

entry_points! {
    pub(super) fn memcpy(
        context: Handle<Context>,
        to: *mut c_void,
        from: *const c_void,
        size: usize,
    ) {
        not_null(to)?;
        not_null(from)?;
        if size == 0 {
            return Err(Failure::SIZE);
        }
        let usm = &context.state().usm;
        // SAFETY: the caller guarantees that the memory is valid until this call returns. The call
        // waits until the copy is complete.
        let (to, from) = unsafe {
            (
                usm.range(to, size, Access::ReadWrite, false)?,
                usm.range(from, size, Access::ReadOnly, false)?,
            )
        };
        let (_, inner) = context.first();
        let done = inner.create_event_with(EventOptions::new().shareable(false))?;
        queue_of(context)?.submit(Command::copy(from, to)?.signal(&done))?;
        Ok(done.wait()?)
    }
}

/// Returns the context's queue for copies for which the caller names no queue. The queue is
/// out-of-order, so the copies do not wait for each other.
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
