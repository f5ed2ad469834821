//! A lock for a few instructions.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Lets one thread at a time have a value, as `std`'s `Mutex`, but is let go of by a plain store:
/// taking it is the only atomic operation, and those are most of what the calls cost that take
/// one (see `docs/unified-runtime.md`). The price is that nobody can be woken. Who finds it held
/// tries for a while and then sleeps a little, again and again, so it should be held briefly;
/// sleeping, not yielding, lets a holder of any lower priority go on.
#[derive(Default)]
pub(crate) struct ShortLock<T> {
    is_held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a guard, of which there is one at a time.
unsafe impl<T: Send> Sync for ShortLock<T> {}

/// How often to look before the first sleep: about as long as a system call takes.
const LOOKS: u32 = 100;
const SLEEP: Duration = Duration::from_micros(20);

impl<T> ShortLock<T> {
    #[inline]
    pub(crate) fn lock(&self) -> ShortGuard<'_, T> {
        if self.is_held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        ShortGuard(self, PhantomData)
    }

    /// Takes it once it is free.
    #[cold]
    fn wait(&self) {
        let mut looks = 0;
        while self.is_held.load(Ordering::Relaxed) || self.is_held.swap(true, Ordering::Acquire) {
            looks += 1;
            if looks < LOOKS {
                std::hint::spin_loop();
            } else {
                thread::sleep(SLEEP);
            }
        }
    }
}

/// Has the value to itself until it is dropped; may be passed on as a `&mut` to it may.
pub(crate) struct ShortGuard<'a, T>(&'a ShortLock<T>, PhantomData<&'a mut T>);

impl<T> Deref for ShortGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for ShortGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only guard.
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
                            thread::sleep(SLEEP);
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
