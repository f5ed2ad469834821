//! Completion counts and flags, by which lists notify other threads that commands have ended.

use crosshandle_types::sync::{Condvar, Deadline, Mutex};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A count of ended commands that threads can wait for.
#[derive(Default)]
pub(super) struct CompletionCount {
    count: AtomicU64,
    waiters: AtomicUsize,
    lock: Mutex<()>,
    /// Notified when the count has increased and there are waiters.
    grown: Condvar,
}

impl CompletionCount {
    pub(super) fn get(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    pub(super) fn add(&self, count: u64) {
        // A waiter raises `waiters` before it reads the count, so that one of the two threads sees
        // what the other has written.
        self.count.fetch_add(count, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock());
            self.grown.notify_all();
        }
    }

    /// Waits until the count has reached `count`. Returns `false` at the deadline.
    pub(super) fn wait(&self, count: u64, deadline: Deadline) -> bool {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let guard = self.lock.lock();
        let is_short = |(): &mut ()| self.get() < count;
        drop(self.grown.wait_until_while(guard, deadline, is_short));
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        self.get() >= count
    }
}

/// A flag that a command sets when it has ended, for later commands in other lists.
#[derive(Default)]
pub(super) struct CompletionFlag(CompletionCount);

impl CompletionFlag {
    pub(super) fn is_raised(&self) -> bool {
        self.0.get() > 0
    }

    pub(super) fn raise(&self) {
        self.0.add(1);
    }

    pub(super) fn wait(&self) {
        self.0.wait(1, Deadline::NEVER);
    }
}
