//! The way in and out of every function: arguments as C has them, errors as text, and no panic.

use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Display;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::Duration;

/// What the body of a function comes to.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

thread_local! {
    /// Why the last call failed that did.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Why the last call of this thread failed that did. Valid until the thread's next call.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_error() -> *const c_char {
    // A thread that ends has no text any more.
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(ptr::null())
}

/// Runs the body of a function, and returns `failed` if that fails or panics, which would be a fault
/// of ours and must not get into code of another language.
pub(crate) fn enter<T>(failed: T, body: impl FnOnce() -> Outcome<T>) -> T {
    let message = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(error)) => error.to_string(),
        Err(payload) => {
            // Its drop might panic again.
            std::mem::forget(payload);
            "crosshandle panicked: what it said is on the standard error".into()
        }
    };
    // No message has a zero inside; one that did would be lost.
    let message = CString::new(message).unwrap_or_default();
    let _ = LAST.try_with(|last| last.replace(message));
    failed
}

/// For functions that make something.
pub(crate) fn made<T>(body: impl FnOnce() -> Outcome<T>) -> Option<Box<T>> {
    enter(None, || body().map(|made| Some(Box::new(made))))
}

/// For functions that do something: 0, or −1 if they fail.
pub(crate) fn done(body: impl FnOnce() -> Outcome<()>) -> i32 {
    enter(-1, || body().map(|()| 0))
}

/// For functions that give something back.
pub(crate) fn freed<T>(object: Option<Box<T>>) {
    enter((), || {
        drop(object);
        Ok(())
    });
}

/// Refuses null.
pub(crate) fn given<T>(argument: Option<T>) -> Outcome<T> {
    argument.ok_or_else(|| "an argument is null".into())
}

/// Text of the caller's.
///
/// # Safety
/// `text` is null or points to text that ends with a zero and stays as it is during the call.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Outcome<&'a str> {
    if text.is_null() {
        return Err("an argument is null".into());
    }
    // SAFETY: not null, so text by the caller's promise.
    Ok(unsafe { CStr::from_ptr(text) }.to_str()?)
}

/// A time in seconds.
pub(crate) fn time(seconds: f64) -> Outcome<Duration> {
    Ok(Duration::try_from_secs_f64(seconds)?)
}

/// Where the caller wants a handle's text.
#[repr(transparent)]
pub(crate) struct Text([u8; crosshandle::handle::TEXT_LENGTH + 1]);

impl Text {
    /// Writes a handle there, and a zero.
    pub(crate) fn put(&mut self, handle: &dyn Display) -> Outcome<()> {
        Ok(write!(&mut self.0[..], "{handle}\0")?)
    }
}
