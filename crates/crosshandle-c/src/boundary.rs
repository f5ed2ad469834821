//! The boundary between C and Rust: the wrapper of all functions, and the conversion of arguments.
//!
//! The functions of this module that read or write through pointers are unsafe. Their callers are
//! bodies of [`entry!`], which pass pointers that the C program has passed.

use crate::error::{Failure, Result, crosshandle_result};
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use std::{ptr, slice};

/// A timeout that never passes.
pub const CROSSHANDLE_FOREVER: u64 = u64::MAX;

/// Runs the body of a C function, which is of type `Result<()>`, and returns the function's result.
macro_rules! entry {
    ($($body:tt)*) => {
        $crate::boundary::enter(|| {
            // SAFETY: every pointer that the body uses is an argument of the C function or part of
            // one. The program keeps the rules in the top comment of this crate, and the body keeps
            // no reference after the call.
            unsafe { $($body)* }
        })
    };
}

/// Runs the body of a C function that makes an object. The body's value is the value of the object,
/// which the function stores at `place`. A null place is an error before the body runs.
macro_rules! entry_object {
    ($place:expr; $($body:tt)*) => {
        $crate::boundary::entry! {
            let place = $crate::boundary::place($place)?;
            place.write($crate::object::open({ $($body)* }));
            Ok(())
        }
    };
}

/// Runs the body of a C function, which is of type `Result<T>`. Returns the value after `or` if the
/// body fails.
macro_rules! entry_value {
    (or $failed:expr; $($body:tt)*) => {
        $crate::boundary::enter_value($failed, || {
            #[allow(unused_unsafe, reason = "some bodies use no argument")]
            // SAFETY: as in `entry!`.
            unsafe { $($body)* }
        })
    };
}

pub(crate) use {entry, entry_object, entry_value};

/// Runs the body of a function that returns a result code.
#[inline(always)]
pub(crate) fn enter(body: impl FnOnce() -> Result<()>) -> crosshandle_result {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => crosshandle_result::CROSSHANDLE_OK,
        Ok(Err(failure)) => failure.store(),
        Err(panic) => panicked(panic),
    }
}

/// Runs the body of a function that returns a value. Returns `failed` if the body fails.
#[inline(always)]
pub(crate) fn enter_value<T>(failed: T, body: impl FnOnce() -> Result<T>) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure.store(),
        Err(panic) => panicked(panic),
    };
    failed
}

/// Stores the error of a panic, which is a bug of this library.
#[cold]
fn panicked(panic: Box<dyn std::any::Any + Send>) -> crosshandle_result {
    // The panic's value is leaked, because its drop might panic again.
    std::mem::forget(panic);
    Failure::PANIC.store()
}

/// Returns the structure at a pointer that must not be null.
#[inline]
pub(crate) unsafe fn given<'a, T>(argument: *const T) -> Result<&'a T> {
    // SAFETY: the caller's pointer is null or valid for reads.
    unsafe { argument.as_ref() }.ok_or(Failure::NULL)
}

/// Returns the place for a result that the program must take.
#[inline]
pub(crate) unsafe fn place<'a, T>(result: *mut T) -> Result<&'a mut MaybeUninit<T>> {
    // SAFETY: the caller's pointer is null or valid for writes.
    unsafe { result.cast::<MaybeUninit<T>>().as_mut() }.ok_or(Failure::NULL)
}

/// Writes a result that the program may ignore by passing null.
#[inline]
pub(crate) unsafe fn put<T>(result: *mut T, value: T) {
    if !result.is_null() {
        // SAFETY: the caller's pointer is null or valid for writes.
        unsafe { result.write(value) }
    }
}

const TOO_LARGE: Failure = Failure::invalid("a size is larger than any object can be");

/// Returns whether objects of this many elements can exist.
#[inline]
fn is_size<T>(count: usize) -> bool {
    count <= isize::MAX as usize / size_of::<T>().max(1)
}

/// Returns a list that the program has passed.
#[inline]
pub(crate) unsafe fn list<'a, T>(first: *const T, count: usize) -> Result<&'a [T]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::NULL),
        (false, _) if !is_size::<T>(count) => Err(TOO_LARGE),
        // SAFETY: the caller's pointer is valid for this many elements, whose size was checked.
        (false, _) => Ok(unsafe { slice::from_raw_parts(first, count) }),
    }
}

/// Returns memory of the program that this library writes to. Its bytes may be uninitialised, so
/// they are zeroed first. Call this after all checks, because a failed call writes nothing.
#[inline]
pub(crate) unsafe fn buffer<'a>(first: *mut u8, count: usize) -> Result<&'a mut [u8]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(Failure::NULL),
        (false, _) if !is_size::<u8>(count) => Err(TOO_LARGE),
        // SAFETY: the caller's pointer is valid for writes of this many bytes, which are not more
        // than an object can have.
        (false, _) => Ok(unsafe {
            first.write_bytes(0, count);
            slice::from_raw_parts_mut(first, count)
        }),
    }
}

/// Returns a text that must not be null.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a str> {
    // SAFETY: the caller's pointer is null or a text.
    unsafe { optional_text(text) }?.ok_or(Failure::NULL)
}

/// Returns a text, or `None` for null.
pub(crate) unsafe fn optional_text<'a>(text: *const c_char) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the pointer is not null, so it is a text.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str();
    text.map(Some)
        .map_err(|_| Failure::invalid("a text is not UTF-8"))
}

/// Copies a text with a terminating zero to a buffer of `size` bytes. Stores the length of the
/// whole text in `needed`, unless that is null. A text that is too long is cut at a character.
///
/// Programs may pass null and 0 to ask for the length.
pub(crate) unsafe fn put_text(text: &str, to: *mut c_char, size: usize, needed: *mut usize) {
    // SAFETY: as promised by the caller.
    unsafe { put(needed, text.len()) };
    if to.is_null() || size == 0 {
        return;
    }
    let text = &text[..text.floor_char_boundary(size - 1)];
    // SAFETY: `to` is valid for `size` bytes, which are more than the text has.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), text.len());
        to.add(text.len()).write(0);
    }
}

/// Converts a timeout in nanoseconds.
#[inline]
pub(crate) fn timeout(nanoseconds: u64) -> Duration {
    match nanoseconds {
        CROSSHANDLE_FOREVER => Duration::MAX,
        _ => Duration::from_nanos(nanoseconds),
    }
}
