//! The slot in each queue that contains the queue's capture.

use super::capture::Capture;
use crate::abi::lock::Lock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The slot of a queue for its active capture. Its lock is held only briefly, and no other lock is
/// acquired while it is held.
#[derive(Default)]
pub(crate) struct CaptureSlot {
    /// Whether the slot contains a capture. Each command reads this flag, because acquiring the
    /// lock would cost more. Relaxed accesses suffice: a program that orders its calls on a queue
    /// also orders these accesses.
    is_capturing: AtomicBool,
    capture: Lock<Option<Arc<Capture>>>,
}

impl CaptureSlot {
    /// Returns the queue's active capture. Returns `None` if the queue is not being captured.
    #[inline]
    pub(crate) fn capture(&self) -> Option<Arc<Capture>> {
        match self.is_capturing.load(Ordering::Relaxed) {
            true => self.capture.lock().clone(),
            false => None,
        }
    }

    /// Puts a capture into the slot. Returns `false` if the slot already contains a capture.
    pub(super) fn join(&self, capture: &Arc<Capture>) -> bool {
        let mut place = self.capture.lock();
        let is_free = place.is_none();
        if is_free {
            *place = Some(Arc::clone(capture));
            self.is_capturing.store(true, Ordering::Relaxed);
        }
        is_free
    }

    /// Removes a capture from the slot. Does nothing if the slot contains another capture.
    pub(super) fn leave(&self, capture: &Arc<Capture>) {
        let mut place = self.capture.lock();
        if place.as_ref().is_some_and(|own| Arc::ptr_eq(own, capture)) {
            // The caller holds a reference to the capture, so this does not drop the last one under
            // the lock.
            *place = None;
            self.is_capturing.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for CaptureSlot {
    /// Ends the capture if this queue is its origin, because only the origin could end it
    /// otherwise.
    fn drop(&mut self) {
        if let Some(capture) = self.capture.get_mut().take()
            && capture.is_origin(self)
        {
            capture.abandon();
        }
    }
}
