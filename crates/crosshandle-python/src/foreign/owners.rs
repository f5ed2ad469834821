//! Owners of lent memory: Python's objects that the library lets go of, on whatever thread.

use crosshandle::adapter_support::PerProcess;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Python's objects that stand for memory until drop.
///
/// The library may drop them beneath a function that a driver's library called, with the interpreter locked or
/// not, as nobody there knows. So the drop touches no object: it has the main thread do that soon.
pub(crate) struct Owners(pub(crate) Vec<Py<PyAny>>);

/// What is to be let go of.
static LEFT: PerProcess<Mutex<Vec<Py<PyAny>>>> = PerProcess::new(Mutex::default);
/// Whether the main thread has been asked to.
static IS_ASKED: PerProcess<AtomicBool> = PerProcess::new(AtomicBool::default);

impl Drop for Owners {
    fn drop(&mut self) {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        left.append(&mut self.0);
        drop(left);
        // SAFETY: any thread may call this at any time.
        let is_there = unsafe { ffi::Py_IsInitialized() } != 0;
        if is_there && !IS_ASKED.swap(true, Ordering::SeqCst) {
            // SAFETY: any thread may call this while there is an interpreter; the function takes no argument.
            let refused = unsafe { ffi::Py_AddPendingCall(Some(let_go), ptr::null_mut()) } != 0;
            if refused {
                // Its queue is full: the next drop asks again, or the next call of the module.
                IS_ASKED.store(false, Ordering::SeqCst);
            }
        }
    }
}

extern "C" fn let_go(_: *mut c_void) -> c_int {
    // The interpreter calls this, so it is there.
    Python::attach(|_| let_go_now());
    0
}

/// Lets go of all owners. The caller has the interpreter.
pub(crate) fn let_go_now() {
    IS_ASKED.store(false, Ordering::SeqCst);
    let left = std::mem::take(&mut *LEFT.lock().unwrap_or_else(PoisonError::into_inner));
    // Without the lock: their drops run code of the program.
    drop(left);
}
