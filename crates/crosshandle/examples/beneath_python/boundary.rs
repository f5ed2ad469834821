//! The C boundary of every function: converts arguments from C and errors to text, and stops
//! panics.

use crosshandle::handle::HandleKind;
use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Display;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::Duration;

/// The result of a function's body.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

thread_local! {
    /// The error text of this thread's latest failed call.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Returns the error text of this thread's latest failed call. It is valid until the thread's next
/// call.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_error() -> *const c_char {
    // A thread that is ending has no text any more.
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(ptr::null())
}

/// Runs the body of a function. Returns `failed` if the body fails or panics, because a panic must
/// not unwind into code of another language.
pub(crate) fn enter<T>(failed: T, body: impl FnOnce() -> Outcome<T>) -> T {
    let message = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(error)) => error.to_string(),
        Err(payload) => {
            // The payload is leaked because its drop might panic again.
            std::mem::forget(payload);
            "crosshandle panicked: what it said is on the standard error".into()
        }
    };
    // A message with a zero inside would be lost, but no message contains one.
    let message = CString::new(message).unwrap_or_default();
    let _ = LAST.try_with(|last| last.replace(message));
    failed
}

/// Runs the body of a function that creates an object.
pub(crate) fn made<T>(body: impl FnOnce() -> Outcome<T>) -> Option<Box<T>> {
    enter(None, || body().map(|made| Some(Box::new(made))))
}

/// Runs the body of a function without a result. Returns 0, or -1 if the body fails.
pub(crate) fn done(body: impl FnOnce() -> Outcome<()>) -> i32 {
    enter(-1, || body().map(|()| 0))
}

/// Runs the body of a function that frees an object.
pub(crate) fn freed<T>(object: Option<Box<T>>) {
    enter((), || {
        drop(object);
        Ok(())
    });
}

/// Returns an error if the argument is null.
pub(crate) fn given<T>(argument: Option<T>) -> Outcome<T> {
    argument.ok_or_else(|| "an argument is null".into())
}

/// Converts a text argument of the caller.
///
/// # Safety
/// `text` must be null or point to text that ends with a zero and does not change during the call.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Outcome<&'a str> {
    if text.is_null() {
        return Err("an argument is null".into());
    }
    // SAFETY: the pointer is not null, so the caller guarantees a terminated text.
    Ok(unsafe { CStr::from_ptr(text) }.to_str()?)
}

/// Converts a time in seconds.
pub(crate) fn time(seconds: f64) -> Outcome<Duration> {
    Ok(Duration::try_from_secs_f64(seconds)?)
}

/// The caller's buffer for a handle's text.
#[repr(transparent)]
pub(crate) struct Text([u8; HandleKind::Memory.text_length() + 1]);

impl Text {
    /// Writes a handle and a zero to the buffer.
    pub(crate) fn put(&mut self, handle: &dyn Display) -> Outcome<()> {
        Ok(write!(&mut self.0[..], "{handle}\0")?)
    }
}
