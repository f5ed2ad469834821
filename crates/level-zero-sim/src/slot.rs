//! Flags, which are the state of pooled events.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::wait::{Bell, Deadline, Waited};

#[derive(Default)]
pub(crate) struct Slot {
    is_done: AtomicBool,
    /// Rings whenever the state changes.
    changes: Bell,
}

impl Slot {
    pub(crate) fn complete(&self) {
        self.is_done.store(true, Ordering::Release);
        self.changes.ring();
    }

    pub(crate) fn reset(&self) {
        self.is_done.store(false, Ordering::Release);
        self.changes.ring();
    }

    pub(crate) fn wait(&self, deadline: Deadline, gone: impl Fn() -> bool) -> Waited {
        let is_done = || self.is_done.load(Ordering::Acquire);
        self.changes.wait(deadline, gone, is_done)
    }
}
