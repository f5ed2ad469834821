//! Crosshandle beneath another language: a shared library with C functions over the safe crate.
//!
//! [`crosshandle.py`](crosshandle.py) makes classes of them, [`share_arrays.py`](share_arrays.py)
//! is a program of two processes that compute on one array with NumPy, torch or CuPy:
//! ```console
//! $ cargo build --package crosshandle --example beneath_python
//! $ python3 crates/crosshandle/examples/beneath_python/share_arrays.py numpy numpy
//! ```
//!
//! # For the caller
//! - What a function makes (`_new`, `_adopt`, `_open`, …) belongs to the caller, who gives it back
//!   once, to the `_free` of its kind. Null is accepted everywhere: freed it is nothing, used an
//!   error.
//! - What failed returns null, 0 where a number is expected, and −1 where nothing is; then
//!   [`crosshandle_error`](boundary::crosshandle_error) says why.
//! - Any thread may use any object, and several at once; only `_free` must be the last.
//! - Handles are text of 144 characters and a terminating zero ([`boundary::Text`]).
//! - Objects of the driver (streams, events) are passed as numbers, as its own programs have them.
//!
//! # Why there is `unsafe` here
//! Names are exported without mangling, text comes in as C has it, and who adopts an object of the
//! driver vouches for it. Everything else is safe: a reference in a signature is a pointer from
//! `_new` that wasn't freed yet, which the caller promises as C's callers always do.

mod boundary;
mod event;
mod queue;

use boundary::{Text, done, enter, freed, given, made, text};
use crosshandle::{Context, Device, Memory};
use std::ffi::c_char;
use std::ptr::{self, NonNull};

/// A context on the device with this name (`host`, `cuda:1`).
///
/// # Safety
/// `device` is null or text.
#[unsafe(no_mangle)]
unsafe extern "C" fn crosshandle_context_new(device: *const c_char) -> Option<Box<Context>> {
    // SAFETY: promised by the caller.
    made(|| Ok(Context::new(&Device::find(unsafe { text(device)? })?)?))
}

/// Objects made by it stay.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_context_free(context: Option<Box<Context>>) {
    freed(context);
}

/// `len` bytes of the device's memory, which can be shared.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_memory_new(context: Option<&Context>, len: usize) -> Option<Box<Memory>> {
    made(|| Ok(given(context)?.allocate(len)?))
}

/// `len` bytes at `address` that the caller allocated with the driver or a library above it.
///
/// # Safety
/// The allocation lives until the result is freed, commands that use it are done and, where the
/// driver does not count importers, all of them have closed it.
#[unsafe(no_mangle)]
unsafe extern "C" fn crosshandle_memory_adopt(
    context: Option<&Context>,
    address: *mut u8,
    len: usize,
) -> Option<Box<Memory>> {
    made(|| {
        let address = NonNull::new(address).ok_or("there is no memory at address 0")?;
        // SAFETY: promised by the caller.
        Ok(unsafe { given(context)?.adopt_memory(address, len)? })
    })
}

/// The memory of a handle.
///
/// # Safety
/// `handle` is null or text.
#[unsafe(no_mangle)]
unsafe extern "C" fn crosshandle_memory_open(
    context: Option<&Context>,
    handle: *const c_char,
) -> Option<Box<Memory>> {
    // SAFETY: promised by the caller.
    made(|| Ok(given(context)?.open_memory(&unsafe { text(handle)? }.parse()?)?))
}

/// Writes a handle to `to`.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_memory_handle(memory: Option<&Memory>, to: Option<&mut Text>) -> i32 {
    done(|| given(to)?.put(&given(memory)?.handle()?))
}

/// Where it starts in this process: a device's address, on the host a pointer.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_memory_address(memory: Option<&Memory>) -> *mut u8 {
    enter(ptr::null_mut(), || Ok(given(memory)?.as_ptr()))
}

/// Bytes in it.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_memory_len(memory: Option<&Memory>) -> usize {
    enter(0, || Ok(given(memory)?.len()))
}

/// Frees it, or closes it here.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_memory_free(memory: Option<Box<Memory>>) {
    freed(memory);
}
