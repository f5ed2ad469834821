//! Entry points that share USM between processes.

use super::{HandleBytes, put_bytes};
use crate::abi::boundary::{MaybeOut, Out, entry_points, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::Handle;
use crate::context::Context;
use crate::discovery::Device;
use crosshandle::handle::MEMORY_HANDLE_SIZE;
use crosshandle::{Error, Memory, MemoryHandle};
use std::ffi::c_void;

entry_points! {
    /// Returns the handle of memory. If `data` is null, the call returns only the size that the
    /// handle has.
    pub(super) fn get(
        context: Handle<Context>,
        memory: *mut c_void,
        data: MaybeOut<*mut c_void>,
        size: Out<usize>,
    ) {
        not_null(memory)?;
        let state = context.state();
        let Some(data) = data else {
            state.usm.with_handle(memory, |_| ())?;
            return size.put(MEMORY_HANDLE_SIZE);
        };
        let bytes = state.usm.with_handle(memory, |bytes| state.handles.hand_out(bytes))?;
        put_bytes(bytes, MEMORY_HANDLE_SIZE, &data, &size)
    }

    pub(super) fn open(
        context: Handle<Context>,
        device: Handle<Device>,
        bytes(data, size): HandleBytes<*mut c_void>,
        memory: Out<*mut c_void>,
    ) {
        let handle = MemoryHandle::from_bytes(bytes);
        // The handle is passed by reference, because moving it would cost time.
        let handle = handle.as_ref().map_err(|error| Error::from(error.clone()))?;
        let opened = open_on(context.on(device)?, handle)?;
        memory.put(context.state().usm.add_opened(device, opened))
    }

    /// Closes opened memory. If memory was opened several times at this address, one call closes
    /// only one of these openings.
    pub(super) fn close(context: Handle<Context>, memory: *mut c_void) {
        not_null(memory)?;
        let closed = context.state().usm.close(memory);
        closed.map(drop).ok_or_else(|| {
            Failure::argument("no memory that was opened in this context starts at this address")
        })
    }
}

/// Opens memory with the access that its handle allows: read-write if possible, and read-only
/// otherwise.
pub(super) fn open_on(
    context: &crosshandle::Context,
    handle: &MemoryHandle,
) -> Result<Memory, Error> {
    match context.open_memory(handle) {
        Err(Error::ReadOnly) => context.open_memory_read_only(handle),
        opened => opened,
    }
}
