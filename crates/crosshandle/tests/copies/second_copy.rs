//! A copy of crosshandle inside a shared library, as in a plug-in.

mod actor;

use actor::Actor;
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Receives the bytes of the reply for the caller.
type Take = extern "C" fn(target: *mut c_void, bytes: *const u8, len: usize);

/// Executes the command in a line with this library's copy.
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
    // SAFETY: the caller guarantees it.
    let line = unsafe { std::str::from_utf8_unchecked(std::slice::from_raw_parts(line, len)) };
    let mut actor = ACTOR.lock().unwrap_or_else(PoisonError::into_inner);
    let answer = actor.act(line);
    take(target, answer.as_ptr(), answer.len());
}
