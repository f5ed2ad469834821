//! The way in and out of every entry point.

use crate::failure::{Failure, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use unified_runtime_sys::ur_result_t;

/// Runs the body of an entry point. Its error becomes a UR result and is kept for
/// `urAdapterGetLastError`; a panic, which would be a fault of ours, ends here.
#[inline]
pub(crate) fn enter(body: impl FnOnce() -> Result<()>) -> ur_result_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ur_result_t::UR_RESULT_SUCCESS,
        Ok(Err(failure)) => failure.report(),
        Err(payload) => {
            let result = Failure::panicked(&*payload).report();
            // Its drop may panic too.
            std::mem::forget(payload);
            result
        }
    }
}

/// Writes a result through a pointer of the caller's.
///
/// # Errors
/// `INVALID_NULL_POINTER`.
///
/// # Safety
/// `place` must be null or valid for a write.
#[inline]
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Result<()> {
    if place.is_null() {
        return Err(Failure::NULL_POINTER);
    }
    // SAFETY: not null, so valid by the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

/// The same where the caller may leave the pointer out.
///
/// # Safety
/// As [`put`].
#[inline]
pub(crate) unsafe fn put_optional<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: not null, so valid by the caller's promise.
        unsafe { place.write(value) };
    }
}

/// Refuses a null pointer.
#[inline]
pub(crate) fn not_null<T>(pointer: *const T) -> Result<()> {
    if pointer.is_null() {
        return Err(Failure::NULL_POINTER);
    }
    Ok(())
}

/// A list of the caller's: `count` elements at `first`.
///
/// # Errors
/// `INVALID_NULL_POINTER` for elements that are nowhere, `INVALID_SIZE` for more than there can be.
///
/// # Safety
/// `first` must be null or point to `count` elements, valid for reads during `'a`, unless there
/// can't be so many.
#[inline]
pub(crate) unsafe fn list<'a, T>(first: *const T, count: usize) -> Result<&'a [T]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::NULL_POINTER),
        (false, _) if count > isize::MAX as usize / size_of::<T>() => Err(Failure::SIZE),
        // SAFETY: by the caller's promise, and no more than there can be.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(first, count) }),
    }
}
