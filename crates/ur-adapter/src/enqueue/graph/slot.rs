//! The place in each queue that says which capture it records in.

use super::capture::Capture;
use crate::abi::lock::Lock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The capture that a queue records in, if it does. The lock is held for moments, and no other is taken
/// meanwhile.
#[derive(Default)]
pub(crate) struct CaptureSlot {
    /// Looked at by every command. Threads that use a queue in some order see it in that order.
    is_capturing: AtomicBool,
    capture: Lock<Option<Arc<Capture>>>,
}

impl CaptureSlot {
    /// Returns the capture.
    #[inline]
    pub(crate) fn capture(&self) -> Option<Arc<Capture>> {
        match self.is_capturing.load(Ordering::Relaxed) {
            true => self.capture.lock().clone(),
            false => None,
        }
    }

    /// Lets the queue record in a capture. Returns whether it did not record already.
    pub(super) fn join(&self, capture: &Arc<Capture>) -> bool {
        let mut place = self.capture.lock();
        let is_free = place.is_none();
        if is_free {
            *place = Some(Arc::clone(capture));
            self.is_capturing.store(true, Ordering::Relaxed);
        }
        is_free
    }

    /// Lets the queue run its commands again, unless it records in another capture by now.
    pub(super) fn leave(&self, capture: &Arc<Capture>) {
        let mut place = self.capture.lock();
        if place.as_ref().is_some_and(|own| Arc::ptr_eq(own, capture)) {
            // The caller has the capture too, so that it does not end here.
            *place = None;
            self.is_capturing.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for CaptureSlot {
    /// Nobody can end a capture whose origin is gone: the other queues leave it.
    fn drop(&mut self) {
        if let Some(capture) = self.capture.get_mut().take()
            && capture.is_origin(self)
        {
            capture.abandon();
        }
    }
}
