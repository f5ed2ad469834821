//! Locks: a plain one that ignores poison, and one for a few instructions.

use crate::tuning::{SHORT_LOCK_LOOKS, SHORT_LOCK_SLEEP};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// A mutex that stays usable after a panic: what it guards is consistent between any two
/// statements.
#[derive(Default)]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    /// Returns a lock around a value.
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits for the lock, and takes it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value, which is this thread's alone.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lock that gives one thread at a time a value, as [`Lock`] does, but is released by a plain
/// store: taking it is the only atomic operation, and those are most of what the calls cost that
/// take one (`docs/unified-runtime.md` has what `std`'s mutex adds to opening and closing memory).
/// The price is that a waiting thread is not woken. A thread that finds it held looks for a while and then
/// sleeps a little, again and again, so it should be held briefly; sleeping, not yielding, lets a
/// holder of any lower priority go on.
#[derive(Default)]
pub(crate) struct ShortLock<T> {
    is_held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a guard, of which there is one at a time; a guard that
// takes the lock sees all that the one before it did (`Acquire` after `Release`).
unsafe impl<T: Send> Sync for ShortLock<T> {}

impl<T> ShortLock<T> {
    /// Waits for the lock, and takes it.
    #[inline]
    pub(crate) fn lock(&self) -> ShortGuard<'_, T> {
        if self.is_held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        ShortGuard(self, PhantomData)
    }

    /// Takes the lock once it is free.
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

/// Has the value of a [`ShortLock`] to itself until it is dropped. It may be sent to, and shared
/// with, other threads as a `&mut` to the value may.
pub(crate) struct ShortGuard<'a, T>(&'a ShortLock<T>, PhantomData<&'a mut T>);

impl<T> Deref for ShortGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard, and it is borrowed.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for ShortGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only guard, and it is borrowed for this reference alone.
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
