//! Owners of lent memory: Python objects that keep the memory alive, and that the library may drop
//! on any thread.

use crosshandle::adapter_support::PerProcess;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Python objects that keep memory alive until this value is dropped.
///
/// The library may drop this value in a driver callback, on a thread that may or may not hold the
/// interpreter's lock. Therefore the drop only adds the objects to [`LEFT`], and asks the main
/// thread to release them soon.
pub(crate) struct Owners(pub(crate) Vec<Py<PyAny>>);

/// Objects that wait for the main thread to release them.
static LEFT: PerProcess<Mutex<Vec<Py<PyAny>>>> = PerProcess::new(Mutex::default);
/// Whether the main thread has been asked to release the objects in [`LEFT`].
static IS_ASKED: PerProcess<AtomicBool> = PerProcess::new(AtomicBool::default);

impl Drop for Owners {
    fn drop(&mut self) {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        left.append(&mut self.0);
        drop(left);
        // SAFETY: any thread may call `Py_IsInitialized` at any time.
        let is_there = unsafe { ffi::Py_IsInitialized() } != 0;
        if is_there && !IS_ASKED.swap(true, Ordering::SeqCst) {
            // SAFETY: any thread may call `Py_AddPendingCall` while the interpreter is initialized.
            // `let_go` ignores its argument, so null is valid.
            let refused = unsafe { ffi::Py_AddPendingCall(Some(let_go), ptr::null_mut()) } != 0;
            if refused {
                // Python's queue of pending calls is full. The objects are released after the next
                // drop, or by the next call to `adopt_all`.
                IS_ASKED.store(false, Ordering::SeqCst);
            }
        }
    }
}

extern "C" fn let_go(_: *mut c_void) -> c_int {
    // The interpreter calls this function, so the interpreter still exists.
    Python::attach(|_| let_go_now());
    0
}

/// Releases all objects in [`LEFT`]. The caller must hold the interpreter's lock.
pub(crate) fn let_go_now() {
    IS_ASKED.store(false, Ordering::SeqCst);
    let left = std::mem::take(&mut *LEFT.lock().unwrap_or_else(PoisonError::into_inner));
    // Drop the objects after releasing the lock, because their destructors may run arbitrary Python
    // code.
    drop(left);
}
