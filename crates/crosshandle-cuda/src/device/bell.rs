//! Wakes the driver if it may have missed that a stream continues.
//!
//! One H200 in a sandbox stopped in the middle of a graph: no stream waited, no host function was
//! announced, and all threads slept until a debugger interrupted them (see `docs/cuda.md`). The
//! driver learns of host functions by an interrupt that its thread receives by polling a file. A
//! lost notification leaves that thread asleep. Another host function, in a stream without other
//! work, makes the device raise an interrupt again.

use super::Gpu;
use crate::driver::Stream;
use crosshandle_types::error::Result;
use crosshandle_types::sync::Mutex;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A stream of one context that only calls empty host functions.
#[derive(Default)]
pub(crate) struct Bell {
    stream: Mutex<Option<Stream>>,
    /// Whether the driver has not yet called the latest function.
    is_ringing: Arc<AtomicBool>,
}

impl Bell {
    /// Makes the driver call an empty host function, unless an earlier call is still due. Returns
    /// whether it does. Never waits for a stream. The device's context is current.
    pub(crate) fn ring(&self, gpu: &Gpu) -> Result<bool> {
        let Some(mut stream) = self.stream.try_lock() else {
            return Ok(false);
        };
        if stream.is_none() {
            *stream = gpu.pool().try_take(gpu)?;
        }
        let Some(stream) = &*stream else {
            return Ok(false);
        };
        if self.is_ringing.swap(true, Ordering::Relaxed) {
            return Ok(false);
        }
        let data = Arc::into_raw(Arc::clone(&self.is_ringing));
        let kept = data.cast_mut().cast();
        // SAFETY: `answer` gets the reference from above once, and does not unwind.
        let called = unsafe { gpu.driver().call_host(stream.handle(), answer, kept) };
        if called.is_err() {
            // SAFETY: the pointer is from above, and the driver did not take it.
            unsafe { answer(kept) };
        }
        called.map(|()| true)
    }

    /// Returns whether the driver has not yet called the latest function.
    pub(crate) fn is_ringing(&self) -> bool {
        self.is_ringing.load(Ordering::Relaxed)
    }
}

/// Ends a ring. The driver calls this.
///
/// # Safety
/// `data` comes from `Arc::into_raw` of an `Arc<AtomicBool>`, and is passed to one call only.
unsafe extern "C" fn answer(data: *mut c_void) {
    // SAFETY: promised by the caller.
    let is_ringing = unsafe { Arc::from_raw(data.cast_const().cast::<AtomicBool>()) };
    is_ringing.store(false, Ordering::Relaxed);
}
