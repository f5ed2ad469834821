//! Crosshandle for another language: a shared library with C functions over the safe crate.
//!
//! [`crosshandle.py`](crosshandle.py) wraps the functions in Python classes.
//! [`share_arrays.py`](share_arrays.py) is a program in which two processes compute on one array
//! with NumPy, torch or CuPy:
//! ```console
//! $ cargo build --package crosshandle --example beneath_python
//! $ python3 crates/crosshandle/examples/beneath_python/share_arrays.py numpy numpy
//! ```
//!
//! # For the caller
//! - An object from `_new`, `_adopt` or `_open` belongs to the caller, which passes it once to the
//!   `_free` function of its kind. Every function accepts null: freeing null does nothing, and
//!   using null is an error.
//! - A failed call returns null, 0 if the result is a number, or -1 if there is no result.
//!   [`crosshandle_error`](boundary::crosshandle_error) then returns the reason.
//! - Any thread may use any object, and several threads may use one at the same time. Only `_free`
//!   must be the last call.
//! - A handle is text of at most 144 characters and a terminating zero ([`boundary::Text`]).
//! - Objects of the driver (streams, events) are passed as numbers, as in the driver's own
//!   interface.
//!
//! # Why there is `unsafe` here
//! The functions have unmangled names, and texts are C strings. A caller that adopts an object of
//! the driver guarantees that it is valid. Everything else is safe: a reference in a signature is a
//! pointer from `_new` that was not freed yet. As always in C, the caller guarantees that.

mod boundary;
mod event;
mod queue;

use boundary::{Text, done, enter, freed, given, made, text};
use crosshandle::{Context, Device, Memory};
use std::ffi::c_char;
use std::ptr::{self, NonNull};

/// Creates a context on the device with this name (`host`, `cuda:1`).
///
/// # Safety
/// `device` must be null or text.
#[unsafe(no_mangle)]
unsafe extern "C" fn crosshandle_context_new(device: *const c_char) -> Option<Box<Context>> {
    // SAFETY: the caller guarantees it.
    made(|| Ok(Context::new(&Device::find(unsafe { text(device)? })?)?))
}

/// Frees a context. Objects that it created stay valid.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_context_free(context: Option<Box<Context>>) {
    freed(context);
}

/// Allocates `len` bytes of device memory that can be shared.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_memory_new(context: Option<&Context>, len: usize) -> Option<Box<Memory>> {
    made(|| Ok(given(context)?.allocate(len)?))
}

/// Adopts `len` bytes at `address`, which the caller allocated with the driver or with a library
/// that uses the driver.
///
/// # Safety
/// The allocation must live until the result is freed and all commands that use it are complete. If
/// the driver does not count importers, it must also live until all importers have closed it.
#[unsafe(no_mangle)]
unsafe extern "C" fn crosshandle_memory_adopt(
    context: Option<&Context>,
    address: *mut u8,
    len: usize,
) -> Option<Box<Memory>> {
    made(|| {
        let address = NonNull::new(address).ok_or("there is no memory at address 0")?;
        // SAFETY: the caller guarantees it.
        Ok(unsafe { Memory::adopt(given(context)?, address, len)? })
    })
}

/// Opens the memory of a handle.
///
/// # Safety
/// `handle` must be null or text.
#[unsafe(no_mangle)]
unsafe extern "C" fn crosshandle_memory_open(
    context: Option<&Context>,
    handle: *const c_char,
) -> Option<Box<Memory>> {
    // SAFETY: the caller guarantees it.
    made(|| Ok(given(context)?.open_memory(&unsafe { text(handle)? }.parse()?)?))
}

/// Writes the memory's handle to `to`.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_memory_handle(memory: Option<&Memory>, to: Option<&mut Text>) -> i32 {
    done(|| given(to)?.put(&given(memory)?.handle()?))
}

/// Returns the memory's address in this process: a device address, or a pointer on the host.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_memory_address(memory: Option<&Memory>) -> *mut u8 {
    enter(ptr::null_mut(), || Ok(given(memory)?.as_ptr()))
}

/// Returns the size of the memory in bytes.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_memory_len(memory: Option<&Memory>) -> usize {
    enter(0, || Ok(given(memory)?.len()))
}

/// Frees memory of this process, or closes opened memory.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_memory_free(memory: Option<Box<Memory>>) {
    freed(memory);
}
