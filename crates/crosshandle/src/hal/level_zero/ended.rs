//! How many commands are over, and who waits for that.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

#[derive(Default)]
pub(super) struct Ended {
    count: AtomicU64,
    waiting: AtomicUsize,
    lock: Mutex<()>,
    /// Notified when there are more, and somebody waits.
    changed: Condvar,
}

impl Ended {
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Whether somebody waits.
    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    pub(super) fn add(&self, count: u64) {
        // Who waits counts himself first, and then looks: one of the two sees the other.
        self.count.fetch_add(count, Ordering::SeqCst);
        if self.is_awaited() {
            drop(self.lock.lock());
            self.changed.notify_all();
        }
    }

    /// Waits until there are so many; `false` at the deadline.
    pub(super) fn wait(&self, count: u64, deadline: Option<Instant>) -> bool {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let are_too_few = |(): &mut ()| self.count() < count;
        let guard = match deadline {
            None => self
                .changed
                .wait_while(guard, are_too_few)
                .unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                let waited = self.changed.wait_timeout_while(guard, left, are_too_few);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        drop(guard);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.count() >= count
    }
}
