//! Locks: [`Lock`], which ignores poison, and [`ShortLock`] for critical sections of a few
//! instructions.

use crate::tuning::{SHORT_LOCK_LOOKS, SHORT_LOCK_SLEEP};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// A mutex that stays usable after a panic. This is sound, because no code leaves the value in an
/// inconsistent state between two statements.
#[derive(Default)]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Acquires the lock, and waits for it if necessary.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value without locking, because the caller has exclusive access.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lock that gives one thread at a time access to a value, as [`Lock`] does.
///
/// Releasing this lock is a plain store, so acquiring it is the only atomic operation. Atomic
/// operations are most of the cost of the calls that use this lock. `docs/unified-runtime.md` says
/// how much `std`'s mutex would add to opening and closing memory. The disadvantage is that the
/// release does not wake a waiting thread. A waiting thread alternately spins and sleeps briefly,
/// so the lock must be held only briefly. The thread sleeps instead of yielding, so that an owner
/// of the lock with a lower priority can run.
#[derive(Default)]
pub(crate) struct ShortLock<T> {
    is_held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only a guard accesses the value, and only one guard exists at a time. A guard that takes
// the lock sees all writes of the previous guard (`Acquire` after `Release`).
unsafe impl<T: Send> Sync for ShortLock<T> {}

impl<T> ShortLock<T> {
    /// Acquires the lock, and waits for it if necessary.
    #[inline]
    pub(crate) fn lock(&self) -> ShortGuard<'_, T> {
        if self.is_held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        ShortGuard(self, PhantomData)
    }

    /// Waits until the lock is free, and acquires it.
    #[cold]
    fn wait(&self) {
        let mut looks = 0;
        while self.is_held.load(Ordering::Relaxed) || self.is_held.swap(true, Ordering::Acquire) {
            looks += 1;
            if looks < SHORT_LOCK_LOOKS {
                std::hint::spin_loop();
            } else {
                thread::sleep(SHORT_LOCK_SLEEP);
            }
        }
    }
}

/// Exclusive access to the value of a [`ShortLock`]. Dropping the guard releases the lock. The
/// guard may be sent to and shared with other threads like a `&mut` to the value.
pub(crate) struct ShortGuard<'a, T>(&'a ShortLock<T>, PhantomData<&'a mut T>);

impl<T> Deref for ShortGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard of the lock, and it is borrowed.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for ShortGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only guard of the lock, and it is mutably borrowed.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for ShortGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.is_held.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_has_the_value() {
        let lock = ShortLock::<[u64; 2]>::default();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..10_000 {
                        let mut value = lock.lock();
                        value[0] += 1;
                        if round % 1000 == 0 {
                            thread::sleep(SHORT_LOCK_SLEEP);
                        }
                        value[1] += 1;
                        assert_eq!(value[0], value[1]);
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), [40_000; 2]);
    }
}
