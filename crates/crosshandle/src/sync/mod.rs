//! Locks that a panic does not poison, deadlines, and a map that needs no random bytes.
//!
//! No code of this library panics while it holds a lock whose value is inconsistent, and the
//! program's code runs without locks. So poison would tell nothing, and each place that locks would
//! have to say so.

mod deadline;

pub use deadline::Deadline;
pub(crate) use std::sync::MutexGuard;

use std::collections;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::{self, PoisonError, TryLockError};
use std::time::Duration;

/// A map whose hasher takes no random bytes: the standard library's panics where the kernel has none to
/// give, as under some seccomp filters.
pub(crate) type HashMap<K, V> = collections::HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

/// A [`std::sync::Mutex`] without poison.
#[derive(Default, Debug)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Waits for the lock, and locks it.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks it and returns the guard, unless another thread holds the lock.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// A [`std::sync::Condvar`] for [`Mutex`].
#[derive(Default, Debug)]
pub(crate) struct Condvar(sync::Condvar);

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits for a notification. May return without one.
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as `condition` holds.
    pub(crate) fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let waited = self.0.wait_while(guard, condition);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a notification, at most `timeout`; `true` beside the guard if that has passed.
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        let waited = self.0.wait_timeout(guard, timeout);
        let (guard, result) = waited.unwrap_or_else(PoisonError::into_inner);
        (guard, result.timed_out())
    }

    /// Waits as long as `condition` holds, at most `timeout`; `true` beside the guard if that has
    /// passed and `condition` still holds.
    pub(crate) fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        let waited = self.0.wait_timeout_while(guard, timeout, condition);
        let (guard, result) = waited.unwrap_or_else(PoisonError::into_inner);
        (guard, result.timed_out())
    }

    /// Waits as long as `condition` holds, until `deadline` at most; `true` beside the guard if that
    /// has passed and `condition` still holds.
    pub(crate) fn wait_until_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Deadline,
        condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        match deadline.remaining() {
            None => (self.wait_while(guard, condition), false),
            Some(left) => self.wait_timeout_while(guard, countable(left), condition),
        }
    }
}

/// Limits a time to what the clock of a condition variable can count.
fn countable(time: Duration) -> Duration {
    time.min(Duration::from_secs(1 << 32))
}

/// A lock for which a thread waits no longer than it wants to.
#[derive(Default, Debug)]
pub(crate) struct Turn {
    is_taken: Mutex<bool>,
    ended: Condvar,
}

/// A turn, until this is dropped.
pub(crate) struct TurnGuard<'a>(&'a Turn);

impl Turn {
    /// Waits until no other thread has the turn, until `deadline` at most, and takes it.
    pub(crate) fn take(&self, deadline: Deadline) -> Option<TurnGuard<'_>> {
        let is_taken = |is_taken: &mut bool| *is_taken;
        let (mut guard, is_late) =
            self.ended
                .wait_until_while(self.is_taken.lock(), deadline, is_taken);
        if is_late {
            return None;
        }
        *guard = true;
        Some(TurnGuard(self))
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        *self.0.is_taken.lock() = false;
        self.0.ended.notify_one();
    }
}
