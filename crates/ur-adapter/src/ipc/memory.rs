//! Sharing USM.

use super::handle_bytes;
use crate::boundary::{enter, not_null, put};
use crate::context::Context;
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::object::Shared;
use crosshandle::handle::HANDLE_SIZE;
use crosshandle::{Error, Memory, MemoryHandle};
use std::ffi::c_void;
use unified_runtime_sys::{ur_context_handle_t, ur_device_handle_t, ur_result_t};

pub(super) unsafe extern "C" fn get(
    context: ur_context_handle_t,
    memory: *mut c_void,
    data: *mut *mut c_void,
    size: *mut usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle.
        let context = unsafe { Shared::<Context>::from_handle(context) }?;
        not_null(memory)?;
        not_null(data)?;
        not_null(size)?;
        let state = context.state();
        let give = |bytes: &_| state.handles.hand_out(bytes);
        let buffer = state.usm.with_handle(memory, give)?;
        // SAFETY: the caller passes valid pointers.
        unsafe {
            put(data, buffer)?;
            put(size, HANDLE_SIZE)
        }
    })
}

pub(super) unsafe extern "C" fn open(
    context: ur_context_handle_t,
    device: ur_device_handle_t,
    data: *mut c_void,
    size: usize,
    memory: *mut *mut c_void,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles.
        let (context, device) = unsafe {
            (
                Shared::<Context>::from_handle(context)?,
                Shared::<Device>::from_handle(device)?,
            )
        };
        not_null(memory)?;
        // SAFETY: the caller passes this many bytes.
        let bytes = unsafe { handle_bytes(data, size) }?;
        let handle = MemoryHandle::from_bytes(bytes);
        // By reference, since moving a handle takes its time.
        let handle = handle
            .as_ref()
            .map_err(|error| Error::from(error.clone()))?;
        let opened = open_on(context.on(device)?, handle)?;
        let start = context.state().usm.add_opened(device, opened);
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(memory, start) }
    })
}

/// Opens memory for what the handle allows.
fn open_on(context: &crosshandle::Context, handle: &MemoryHandle) -> Result<Memory> {
    match context.open_memory(handle) {
        Err(Error::ReadOnly) => Ok(context.open_memory_read_only(handle)?),
        opened => Ok(opened?),
    }
}

/// Where the same address was opened several times, this ends one of them.
pub(super) unsafe extern "C" fn close(
    context: ur_context_handle_t,
    memory: *mut c_void,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle.
        let context = unsafe { Shared::<Context>::from_handle(context) }?;
        not_null(memory)?;
        let closed = context.state().usm.close(memory);
        closed.map(drop).ok_or_else(|| {
            Failure::argument("this is not where memory that was opened in this context starts")
        })
    })
}
