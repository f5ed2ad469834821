//! The slot in each queue that refers to its capture.

use super::capture::Capture;
use crate::abi::lock::Lock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The capture that a queue records into, if any. The lock is held only briefly, and no other lock
/// is taken while it is held.
#[derive(Default)]
pub(crate) struct CaptureSlot {
    /// Whether there is a capture. Each command reads this flag, which is cheaper than the lock.
    /// Relaxed accesses suffice: a program that orders its uses of a queue also orders these
    /// accesses.
    is_capturing: AtomicBool,
    capture: Lock<Option<Arc<Capture>>>,
}

impl CaptureSlot {
    /// Returns the capture that the queue records into, if any.
    #[inline]
    pub(crate) fn capture(&self) -> Option<Arc<Capture>> {
        match self.is_capturing.load(Ordering::Relaxed) {
            true => self.capture.lock().clone(),
            false => None,
        }
    }

    /// Makes the queue record into a capture. Returns `false` if it is already recording.
    pub(super) fn join(&self, capture: &Arc<Capture>) -> bool {
        let mut place = self.capture.lock();
        let is_free = place.is_none();
        if is_free {
            *place = Some(Arc::clone(capture));
            self.is_capturing.store(true, Ordering::Relaxed);
        }
        is_free
    }

    /// Ends the recording of the queue into a capture. Does nothing if the queue now records into
    /// another capture.
    pub(super) fn leave(&self, capture: &Arc<Capture>) {
        let mut place = self.capture.lock();
        if place.as_ref().is_some_and(|own| Arc::ptr_eq(own, capture)) {
            // This cannot drop the last reference to the capture, because the caller has one.
            *place = None;
            self.is_capturing.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for CaptureSlot {
    /// Removes all queues from the capture if this queue is its origin, because then the capture
    /// can no longer be ended normally.
    fn drop(&mut self) {
        if let Some(capture) = self.capture.get_mut().take()
            && capture.is_origin(self)
        {
            capture.abandon();
        }
    }
}
