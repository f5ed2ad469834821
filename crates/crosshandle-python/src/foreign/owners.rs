//! Owners of lent memory: Python objects that the library may release on any thread.

use crosshandle::adapter_support::PerProcess;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Python objects that keep memory alive until this value is dropped.
///
/// The library may drop this value in a driver's callback, on a thread that may or may not hold the
/// interpreter's lock. So the drop itself does not touch the objects: it asks the main thread to
/// release them soon.
pub(crate) struct Owners(pub(crate) Vec<Py<PyAny>>);

/// Objects that the main thread must release.
static LEFT: PerProcess<Mutex<Vec<Py<PyAny>>>> = PerProcess::new(Mutex::default);
/// Whether the main thread has been asked to release the objects.
static IS_ASKED: PerProcess<AtomicBool> = PerProcess::new(AtomicBool::default);

impl Drop for Owners {
    fn drop(&mut self) {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        left.append(&mut self.0);
        drop(left);
        // SAFETY: any thread may call this at any time.
        let is_there = unsafe { ffi::Py_IsInitialized() } != 0;
        if is_there && !IS_ASKED.swap(true, Ordering::SeqCst) {
            // SAFETY: any thread may call this while the interpreter exists. The function ignores
            // its argument.
            let refused = unsafe { ffi::Py_AddPendingCall(Some(let_go), ptr::null_mut()) } != 0;
            if refused {
                // The queue of pending calls is full. The next drop asks again, or the next call of
                // this module releases the objects.
                IS_ASKED.store(false, Ordering::SeqCst);
            }
        }
    }
}

extern "C" fn let_go(_: *mut c_void) -> c_int {
    // The interpreter calls this function, so it has not ended.
    Python::attach(|_| let_go_now());
    0
}

/// Releases all waiting objects. The caller holds the interpreter's lock.
pub(crate) fn let_go_now() {
    IS_ASKED.store(false, Ordering::SeqCst);
    let left = std::mem::take(&mut *LEFT.lock().unwrap_or_else(PoisonError::into_inner));
    // The objects are dropped after the lock is released, because their destructors may run code of
    // the program.
    drop(left);
}
