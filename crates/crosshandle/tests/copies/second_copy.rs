//! A copy of crosshandle inside a shared library, as a plug-in has one.

mod actor;

use actor::Actor;
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Takes the answer's bytes for the caller.
type Take = extern "C" fn(target: *mut c_void, bytes: *const u8, len: usize);

/// Lets this library's copy do what a line says.
///
/// # Safety
/// `line` must point to `len` bytes of UTF-8; `take` must accept `target`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn second_copy_act(
    line: *const u8,
    len: usize,
    take: Take,
    target: *mut c_void,
) {
    static ACTOR: LazyLock<Mutex<Actor>> = LazyLock::new(Mutex::default);
    // SAFETY: promised by the caller.
    let line = unsafe { std::str::from_utf8_unchecked(std::slice::from_raw_parts(line, len)) };
    let mut actor = ACTOR.lock().unwrap_or_else(PoisonError::into_inner);
    let answer = actor.act(line);
    take(target, answer.as_ptr(), answer.len());
}
