//! Sharing between processes.
//!
//! The `Get` calls return the bytes of a [`crosshandle::handle`]. Received bytes are checked first.
//! If they are not a valid handle, the result is `INVALID_VALUE`.

pub(crate) mod by_pointer;
mod event;
mod memory;
mod physical;

use crate::abi::boundary::{Argument2, Call, OutPointer, entry_points, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::Handle;
use crate::context::Context;
use crosshandle::handle::HANDLE_SIZE;
use std::ffi::c_void;
use std::marker::PhantomData;
use unified_runtime_sys::{ur_ipc_exp_dditable_t, ur_result_t};

/// Two arguments of an entry point: a pointer to the unchecked bytes of a handle, and their number.
/// `P` is a `const` or mutable pointer.
///
/// The call fails with `INVALID_NULL_POINTER` if the pointer is null, and with `INVALID_VALUE` if
/// the size is not the size of a handle.
struct HandleBytes<P>(PhantomData<P>);

impl<P: Into<ConstPointer>> Argument2 for HandleBytes<P> {
    type A = P;
    type B = usize;
    type Value<'a> = &'a [u8; HANDLE_SIZE];

    #[inline]
    unsafe fn read(data: P, size: usize, _call: &Call) -> Result<&[u8; HANDLE_SIZE]> {
        let ConstPointer(data) = data.into();
        not_null(data)?;
        if size != HANDLE_SIZE {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
                format!("a handle has {HANDLE_SIZE} bytes, not {size}"),
            ));
        }
        // SAFETY: the pointer is not null, so the caller ensures that it is valid for reads during
        // `'a`. Bytes need no alignment.
        Ok(unsafe { &*data.cast() })
    }
}

/// A `const` pointer to the bytes of a handle.
struct ConstPointer(*const c_void);

impl From<*const c_void> for ConstPointer {
    fn from(pointer: *const c_void) -> Self {
        Self(pointer)
    }
}

impl From<*mut c_void> for ConstPointer {
    fn from(pointer: *mut c_void) -> Self {
        Self(pointer)
    }
}

/// Writes the address and the number of a handle's bytes to the caller's memory.
fn put_bytes(
    bytes: *mut c_void,
    data: &OutPointer<'_, *mut c_void>,
    size: &OutPointer<'_, usize>,
) -> Result<()> {
    data.put(bytes)?;
    size.put(HANDLE_SIZE)
}

entry_points! {
    /// Takes back the bytes of a handle of any kind.
    fn take_back(context: Handle<Context>, data: *mut c_void) {
        not_null(data)?;
        context.state().handles.take_back(data)
    }

    /// Takes back the bytes of a handle of any kind, like [`take_back`], by a `const` pointer.
    fn take_back_const(context: Handle<Context>, data: *const c_void) {
        not_null(data)?;
        context.state().handles.take_back(data)
    }
}

/// The entry points for sharing between processes.
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
