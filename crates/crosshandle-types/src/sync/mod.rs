//! Locks that a panic does not poison, deadlines, and a map that needs no random bytes.
//!
//! Code of this library never panics while it holds a lock on an inconsistent value, and code of
//! the program never runs under these locks. So poison carries no information, and handling it at
//! every lock would only add noise.

mod deadline;

pub use deadline::Deadline;
pub use std::sync::MutexGuard;

use std::collections;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::{self, PoisonError, TryLockError};
use std::time::Duration;

/// A map whose hasher needs no random bytes. The standard library's hasher panics if the kernel
/// provides none, as under some seccomp filters.
pub type HashMap<K, V> = collections::HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

/// A [`std::sync::Mutex`] without poison.
#[derive(Default, Debug)]
pub struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Acquires the lock, and blocks until it is free.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acquires the lock if it is free. Returns `None` if another thread holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// A [`std::sync::Condvar`] for [`Mutex`].
#[derive(Default, Debug)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits for a notification. May return without one.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while `condition` holds.
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let waited = self.0.wait_while(guard, condition);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a notification for at most `timeout`. Also returns whether the wait timed out.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        let waited = self.0.wait_timeout(guard, timeout);
        let (guard, result) = waited.unwrap_or_else(PoisonError::into_inner);
        (guard, result.timed_out())
    }

    /// Waits while `condition` holds, for at most `timeout`. Also returns whether the time has
    /// passed while `condition` still holds.
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        let waited = self.0.wait_timeout_while(guard, timeout, condition);
        let (guard, result) = waited.unwrap_or_else(PoisonError::into_inner);
        (guard, result.timed_out())
    }

    /// Waits while `condition` holds, until `deadline` at the latest. Also returns whether the
    /// deadline has passed while `condition` still holds.
    pub fn wait_until_while<'a, T>(
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

/// Limits a duration to what a condition variable can wait.
fn countable(time: Duration) -> Duration {
    time.min(Duration::from_secs(1 << 32))
}

/// A lock that a thread can acquire with a deadline.
#[derive(Default, Debug)]
pub struct Turn {
    is_taken: Mutex<bool>,
    ended: Condvar,
}

/// Holds a [`Turn`] until it is dropped.
pub struct TurnGuard<'a>(&'a Turn);

impl Turn {
    /// Acquires the turn. Returns `None` if another thread still has it at `deadline`.
    pub fn take(&self, deadline: Deadline) -> Option<TurnGuard<'_>> {
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
