//! Sharing of memory and events between processes.
//!
//! The `Get` calls return the bytes of a [`crosshandle::handle`]. The `Open` calls validate the
//! bytes that they receive. If the bytes are not a valid handle, the result is `INVALID_VALUE`.

pub(crate) mod by_pointer;
mod event;
mod memory;
mod physical;
pub(crate) mod queue_events;

use crate::abi::boundary::{Argument2, Call, OutPointer, entry_points, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::Handle;
use crate::context::Context;
use crosshandle::handle::MEMORY_HANDLE_SIZE;
use std::ffi::c_void;
use std::marker::PhantomData;
use unified_runtime_sys::{ur_ipc_exp_dditable_t, ur_result_t};

/// An argument of an entry point that contains the bytes of a handle. The caller passes the address
/// of type `P`, which is a `const` or mutable pointer, and the size. The content of the bytes is
/// not validated here.
///
/// The call fails with `INVALID_NULL_POINTER` if the address is null, and with `INVALID_VALUE` if
/// the size is larger than that of every handle. The callers check the other sizes.
struct HandleBytes<P>(PhantomData<P>);

impl<P: Into<ConstPointer>> Argument2 for HandleBytes<P> {
    type A = P;
    type B = usize;
    type Value<'a> = &'a [u8];

    #[inline]
    unsafe fn read(data: P, size: usize, _call: &Call) -> Result<&[u8]> {
        let ConstPointer(data) = data.into();
        not_null(data)?;
        if size > MEMORY_HANDLE_SIZE {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
                format!("a handle has at most {MEMORY_HANDLE_SIZE} bytes, not {size}"),
            ));
        }
        // SAFETY: the caller ensures that a non-null pointer is valid for reads of `size` bytes
        // during `'a`, and that nothing writes to these bytes meanwhile. They require no alignment,
        // and are far fewer than `isize::MAX`.
        Ok(unsafe { std::slice::from_raw_parts(data.cast(), size) })
    }
}

/// A `const` pointer to the bytes of a handle. Both kinds of pointer convert to it.
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

/// Writes the address and the size of a handle's bytes to the caller's memory.
fn put_bytes(
    bytes: *mut c_void,
    bytes_size: usize,
    data: &OutPointer<'_, *mut c_void>,
    size: &OutPointer<'_, usize>,
) -> Result<()> {
    data.put(bytes)?;
    size.put(bytes_size)
}

entry_points! {
    /// Takes back the bytes of a handle, which may be of any kind.
    fn take_back(context: Handle<Context>, data: *mut c_void) {
        not_null(data)?;
        context.state().handles.take_back(data)
    }

    /// Takes back the bytes of a handle, which may be of any kind. The caller passes a `const`
    /// pointer.
    fn take_back_const(context: Handle<Context>, data: *const c_void) {
        not_null(data)?;
        context.state().handles.take_back(data)
    }
}

/// The entry points that share memory and events between processes.
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
