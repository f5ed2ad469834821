//! Two locks: [`Lock`], which ignores poisoning, and [`ShortLock`], which is for critical sections
//! of a few instructions.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Time for which a thread sleeps between two attempts to acquire a short lock. It is longer than a
/// system call, and shorter than a scheduler's time slice.
const SHORT_LOCK_SLEEP: Duration = Duration::from_micros(20);

/// Number of attempts to acquire a short lock before the first sleep. Together, these attempts take
/// about as long as a system call.
const SHORT_LOCK_LOOKS: u32 = 100;

/// A mutex that stays usable after a panic. Ignoring the poison is sound because critical sections
/// leave the value consistent even if they panic.
#[derive(Default)]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Acquires the lock. Blocks while another thread holds the lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a reference to the value. No locking is necessary, because `&mut self` is exclusive.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A spin lock for critical sections of a few instructions.
///
/// Releasing this lock is a plain store, so acquiring it is the only atomic read-modify-write
/// operation. Such operations are most of the cost of the calls that use this lock.
/// `docs/unified-runtime.md` shows how much a `std` mutex would add to opening and closing memory.
///
/// The disadvantage is that the release wakes no thread. A waiting thread first spins, and then
/// sleeps for short intervals. It sleeps instead of yielding, so that a lock holder with a lower
/// priority can run.
#[derive(Default)]
pub(crate) struct ShortLock<T> {
    is_held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only a guard accesses the value, and only one guard exists at a time. The `Acquire` that
// takes the lock pairs with the `Release` of the previous guard, so the new guard sees all of that
// guard's writes.
unsafe impl<T: Send> Sync for ShortLock<T> {}

impl<T> ShortLock<T> {
    /// Acquires the lock. Blocks while another thread holds the lock.
    #[inline]
    pub(crate) fn lock(&self) -> ShortGuard<'_, T> {
        if self.is_held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        ShortGuard(self, PhantomData)
    }

    /// Waits until the lock is free, and then acquires it.
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

/// Exclusive access to the value in a [`ShortLock`]. Dropping the guard releases the lock. The
/// guard is `Send` and `Sync` under the same conditions as a `&mut` to the value.
pub(crate) struct ShortGuard<'a, T>(&'a ShortLock<T>, PhantomData<&'a mut T>);

impl<T> Deref for ShortGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the lock's only guard, and the guard is borrowed.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for ShortGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the lock's only guard, and the guard is mutably borrowed.
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
