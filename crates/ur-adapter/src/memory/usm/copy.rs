//! Copies for which the caller names no queue.

use crate::abi::boundary::{entry_points, not_null};
use crate::abi::failure::Failure;
use crate::abi::object::Handle;
use crate::context::Context;
use crosshandle::{Access, Command, EventOptions};
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
        context.state().copies(0)?.submit(Command::copy(from, to)?.signal(&done))?;
        Ok(done.wait()?)
    }
}
