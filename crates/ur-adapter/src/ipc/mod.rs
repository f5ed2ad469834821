//! Sharing between processes.
//!
//! The bytes that `Get` gives are those of a [`crosshandle::handle`]; they are checked before
//! anything else is done with them, so that whatever is no handle, or no good one, is
//! `INVALID_VALUE`.

mod buffers;
mod event;
mod memory;
mod physical;

pub(crate) use buffers::HandleBuffers;

use crate::boundary::{enter, not_null};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::object::Shared;
use crosshandle::handle::HANDLE_SIZE;
use std::ffi::c_void;
use unified_runtime_sys::{ur_context_handle_t, ur_ipc_exp_dditable_t, ur_result_t};

/// The bytes of a handle, of which nothing else is known yet.
///
/// # Errors
/// `INVALID_NULL_POINTER`; `INVALID_VALUE` for too few or too many.
///
/// # Safety
/// `data` is null or valid for reads of `size` bytes during `'a`.
#[inline]
unsafe fn handle_bytes<'a>(data: *const c_void, size: usize) -> Result<&'a [u8; HANDLE_SIZE]> {
    not_null(data)?;
    if size != HANDLE_SIZE {
        return Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
            format!("a handle has {HANDLE_SIZE} bytes, not {size}"),
        ));
    }
    // SAFETY: not null, so valid by the caller's promise; bytes need no alignment.
    Ok(unsafe { &*data.cast() })
}

/// Takes the bytes of a handle back, whatever kind it is of.
unsafe extern "C" fn take_back(context: ur_context_handle_t, data: *mut c_void) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle.
        let context = unsafe { Shared::<Context>::from_handle(context) }?;
        not_null(data)?;
        context.state().handles.take_back(data)
    })
}

unsafe extern "C" fn take_back_const(
    context: ur_context_handle_t,
    data: *const c_void,
) -> ur_result_t {
    // SAFETY: as promised to this function. The bytes are not written to.
    unsafe { take_back(context, data.cast_mut()) }
}

pub(crate) const TABLE: ur_ipc_exp_dditable_t = ur_ipc_exp_dditable_t {
    pfnGetMemHandleExp: Some(memory::get),
    pfnPutMemHandleExp: Some(take_back),
    pfnOpenMemHandleExp: Some(memory::open),
    pfnCloseMemHandleExp: Some(memory::close),
    pfnGetPhysMemHandleExp: Some(physical::get),
    pfnPutPhysMemHandleExp: Some(take_back_const),
    pfnOpenPhysMemHandleExp: Some(physical::open),
    pfnClosePhysMemHandleExp: Some(physical::close),
    pfnGetEventHandleExp: Some(event::get),
    pfnPutEventHandleExp: Some(take_back),
    pfnOpenEventHandleExp: Some(event::open),
};
