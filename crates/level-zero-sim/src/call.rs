//! Helpers for all entry points.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use level_zero_sys::ze_result_t;
use smallvec::SmallVec;

use crate::checks::{Check, misuse};
use crate::{ledger, refusals};

pub(crate) type Result<T> = std::result::Result<T, ze_result_t>;

pub(crate) const NOT_READY: ze_result_t = ze_result_t::ZE_RESULT_NOT_READY;
pub(crate) const DEVICE_LOST: ze_result_t = ze_result_t::ZE_RESULT_ERROR_DEVICE_LOST;
pub(crate) const OUT_OF_DEVICE_MEMORY: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
pub(crate) const UNSUPPORTED_FEATURE: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
pub(crate) const UNSUPPORTED_SIZE: ze_result_t = ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_SIZE;
pub(crate) const UNSUPPORTED_ALIGNMENT: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT;
pub(crate) const UNSUPPORTED_ENUMERATION: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION;
pub(crate) const UNSUPPORTED_VERSION: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_VERSION;
pub(crate) const INVALID_ARGUMENT: ze_result_t = ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT;
pub(crate) const INVALID_NULL_HANDLE: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
pub(crate) const INVALID_NULL_POINTER: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_INVALID_NULL_POINTER;
pub(crate) const INVALID_SIZE: ze_result_t = ze_result_t::ZE_RESULT_ERROR_INVALID_SIZE;
pub(crate) const INVALID_ENUMERATION: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_INVALID_ENUMERATION;
pub(crate) const INVALID_SYNCHRONIZATION_OBJECT: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT;
pub(crate) const DEPENDENCY_UNAVAILABLE: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE;
pub(crate) const MODULE_BUILD_FAILURE: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_MODULE_BUILD_FAILURE;
pub(crate) const MODULE_LINK_FAILURE: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_MODULE_LINK_FAILURE;
pub(crate) const INVALID_NATIVE_BINARY: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_INVALID_NATIVE_BINARY;
pub(crate) const INVALID_GLOBAL_NAME: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_INVALID_GLOBAL_NAME;
pub(crate) const INVALID_KERNEL_NAME: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_INVALID_KERNEL_NAME;
pub(crate) const INVALID_GROUP_SIZE_DIMENSION: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION;
pub(crate) const INVALID_GLOBAL_WIDTH_DIMENSION: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_INVALID_GLOBAL_WIDTH_DIMENSION;
pub(crate) const INVALID_KERNEL_ARGUMENT_INDEX: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX;
pub(crate) const INVALID_KERNEL_ARGUMENT_SIZE: ze_result_t =
    ze_result_t::ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE;
pub(crate) const UNINITIALIZED: ze_result_t = ze_result_t::ZE_RESULT_ERROR_UNINITIALIZED;
pub(crate) const UNKNOWN: ze_result_t = ze_result_t::ZE_RESULT_ERROR_UNKNOWN;

thread_local! {
    static CURRENT: Cell<&'static str> = const { Cell::new("outside of a call") };
}

/// Returns the name of the entry point that this thread executes.
pub(crate) fn current() -> &'static str {
    CURRENT.get()
}

/// Runs the body of an entry point. Counts the call, and converts the result to a code.
pub(crate) fn call(
    name: &'static str,
    calls: &'static AtomicU64,
    body: impl FnOnce() -> Result<()>,
) -> ze_result_t {
    if calls.fetch_add(1, Ordering::Relaxed) == 0 {
        ledger::note_function(name, calls);
    }
    CURRENT.set(name);
    if let Some(code) = refusals::of(name) {
        return code;
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ze_result_t::ZE_RESULT_SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => {
            misuse(Check::Panic, "the simulated driver itself has failed");
            UNKNOWN
        }
    }
}

/// Defines entry points: functions with the C interface whose bodies return a [`Result`].
///
/// Callers keep Level Zero's own contract. Pointers that are not null point to valid values of
/// their types for the length of the call. Memory that commands use stays valid until the commands
/// are complete.
macro_rules! entry {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block
    )*) => {$(
        $(#[$meta])*
        pub(crate) unsafe extern "C" fn $name(
            $($argument: $type),*
        ) -> level_zero_sys::ze_result_t {
            static CALLS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
            $crate::call::call(stringify!($name), &CALLS, || $body)
        }
    )*};
}
pub(crate) use entry;

/// Reads the value that an argument of an entry point points to.
pub(crate) fn read<T: Copy>(from: *const T) -> Result<T> {
    if from.is_null() {
        return Err(INVALID_NULL_POINTER);
    }
    // SAFETY: the contract of entry points.
    Ok(unsafe { from.read() })
}

/// Checks that a result can be stored, before the call creates a result that would be lost.
pub(crate) fn present<T>(to: *mut T) -> Result<()> {
    match to.is_null() {
        true => Err(INVALID_NULL_POINTER),
        false => Ok(()),
    }
}

/// Stores a result at the address that an argument of an entry point contains.
pub(crate) fn write<T>(to: *mut T, value: T) -> Result<()> {
    if to.is_null() {
        return Err(INVALID_NULL_POINTER);
    }
    // SAFETY: the contract of entry points.
    unsafe { to.write(value) };
    Ok(())
}

/// A short list that needs no allocation, so that the cost of a command does not depend on the
/// allocator's state.
pub(crate) type Few<T> = SmallVec<[T; 4]>;

/// Reads the elements of an array that is an argument of an entry point.
pub(crate) fn read_all<T: Copy>(from: *const T, count: u32) -> Result<Few<T>> {
    if count == 0 {
        return Ok(Few::new());
    }
    if from.is_null() {
        return Err(INVALID_NULL_POINTER);
    }
    // SAFETY: the contract of entry points.
    Ok(Few::from_slice(unsafe {
        std::slice::from_raw_parts(from, count as usize)
    }))
}

/// Returns a list in the usual two steps: first the number of elements, then that many elements.
pub(crate) fn enumerate<T: Copy>(items: &[T], count: *mut u32, to: *mut T) -> Result<()> {
    let all = items.len() as u32;
    let wanted = read(count)?;
    if wanted == 0 || to.is_null() {
        return write(count, all);
    }
    let given = wanted.min(all);
    for (i, item) in items.iter().take(given as usize).enumerate() {
        // SAFETY: the contract of entry points: the caller's array has room for `wanted` elements.
        unsafe { to.add(i).write(*item) };
    }
    write(count, given)
}

/// Converts `text` to an array for a structure, with a zero at its end.
pub(crate) fn name<const N: usize>(text: &str) -> [core::ffi::c_char; N] {
    let mut name = [0; N];
    for (to, from) in name.iter_mut().zip(text.bytes().take(N - 1)) {
        *to = from as core::ffi::c_char;
    }
    name
}
