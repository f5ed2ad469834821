//! What the event protocol needs of the machine.

use std::ops::Add;
pub use std::sync::atomic::Ordering;
use std::time::Duration;

/// A machine on which the protocol runs. It is the real one, or one that a model checker or a
/// fuzzer controls. The type needs no values.
pub trait Platform: Copy + 'static {
    type AtomicU32: Atomic<u32>;
    /// The words that threads sleep on. A sleep compares the upper half.
    type AtomicU64: Atomic<u64>;
    type Instant: Moment;
    /// Keeps the calling thread in the list of sleepers until it is dropped.
    type Entry;

    /// Returns whether spinning makes sense on this machine.
    fn may_spin() -> bool;

    /// Pauses in a spin loop.
    fn spin_hint();

    /// Lets other threads of the caller's CPU run. Returns `false` without doing so if the platform
    /// expects no benefit.
    fn yield_cpu() -> bool {
        false
    }

    /// Notes whether the awaited signal came while the caller yielded.
    fn yielded(is_signalled: bool) {
        let _ = is_signalled;
    }

    /// Returns the number of the CPU that runs the caller.
    fn current_cpu() -> u32;

    /// Sleeps until the word is woken, for at most `limit`. Returns at once if the word's upper
    /// half is not `expected`, and may return early without a reason.
    fn sleep(word: &Self::AtomicU64, expected: u32, limit: Duration);

    /// Sleeps until one of several words is woken. Otherwise like [`sleep`](Self::sleep).
    fn sleep_any(words: &[(&Self::AtomicU64, u32)], limit: Duration);

    /// Wakes all sleepers of the word in every process.
    fn wake_all(word: &Self::AtomicU64);

    /// Adds the calling thread to the list of sleepers, so that an occurrence that changes no word
    /// can wake it.
    fn enter(awaited: impl IntoIterator<Item = Awaited>) -> Self::Entry;
}

/// An atomic word with the interface of the standard library.
pub trait Atomic<T>: Send + Sync + Sized + 'static {
    fn new(value: T) -> Self;
    fn load(&self, order: Ordering) -> T;
    fn store(&self, value: T, order: Ordering);
    fn swap(&self, value: T, order: Ordering) -> T;
    fn compare_exchange(
        &self,
        current: T,
        new: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T>;
    fn compare_exchange_weak(
        &self,
        current: T,
        new: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T>;
    fn fetch_add(&self, value: T, order: Ordering) -> T;
    fn fetch_sub(&self, value: T, order: Ordering) -> T;
    fn fetch_or(&self, value: T, order: Ordering) -> T;
    fn fetch_and(&self, value: T, order: Ordering) -> T;
    fn fetch_max(&self, value: T, order: Ordering) -> T;
}

/// A time of a monotonic clock.
pub trait Moment: Copy + Ord + Add<Duration, Output = Self> {
    /// Returns the current time.
    fn now() -> Self;

    /// Returns the time since `earlier`, or zero if `earlier` is later.
    fn saturating_duration_since(&self, earlier: Self) -> Duration;
}

/// A signal that a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Awaited {
    /// Address of the word that the signal finishes on.
    pub word: usize,
    /// Address of the event's slot.
    pub slot: usize,
    pub number: u64,
}

/// Implements [`Atomic`] for a type that has the same methods itself.
#[macro_export]
macro_rules! impl_atomic {
    ($word:ty, $value:ty) => {
        impl $crate::platform::Atomic<$value> for $word {
            #[inline(always)]
            fn new(value: $value) -> Self {
                <$word>::new(value)
            }

            #[inline(always)]
            fn load(&self, order: $crate::platform::Ordering) -> $value {
                <$word>::load(self, order)
            }

            #[inline(always)]
            fn store(&self, value: $value, order: $crate::platform::Ordering) {
                <$word>::store(self, value, order);
            }

            #[inline(always)]
            fn swap(&self, value: $value, order: $crate::platform::Ordering) -> $value {
                <$word>::swap(self, value, order)
            }

            #[inline(always)]
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: $crate::platform::Ordering,
                failure: $crate::platform::Ordering,
            ) -> Result<$value, $value> {
                <$word>::compare_exchange(self, current, new, success, failure)
            }

            #[inline(always)]
            fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: $crate::platform::Ordering,
                failure: $crate::platform::Ordering,
            ) -> Result<$value, $value> {
                <$word>::compare_exchange_weak(self, current, new, success, failure)
            }

            #[inline(always)]
            fn fetch_add(&self, value: $value, order: $crate::platform::Ordering) -> $value {
                <$word>::fetch_add(self, value, order)
            }

            #[inline(always)]
            fn fetch_sub(&self, value: $value, order: $crate::platform::Ordering) -> $value {
                <$word>::fetch_sub(self, value, order)
            }

            #[inline(always)]
            fn fetch_or(&self, value: $value, order: $crate::platform::Ordering) -> $value {
                <$word>::fetch_or(self, value, order)
            }

            #[inline(always)]
            fn fetch_and(&self, value: $value, order: $crate::platform::Ordering) -> $value {
                <$word>::fetch_and(self, value, order)
            }

            #[inline(always)]
            fn fetch_max(&self, value: $value, order: $crate::platform::Ordering) -> $value {
                <$word>::fetch_max(self, value, order)
            }
        }
    };
}

/// The types of the standard library, which the real machine's platform uses.
mod real {
    #![allow(clippy::disallowed_types)]

    use super::Moment;
    use std::sync::atomic::{AtomicU32, AtomicU64};
    use std::time::{Duration, Instant};

    impl_atomic!(AtomicU32, u32);
    impl_atomic!(AtomicU64, u64);

    impl Moment for Instant {
        #[inline(always)]
        fn now() -> Self {
            Instant::now()
        }

        #[inline(always)]
        fn saturating_duration_since(&self, earlier: Self) -> Duration {
            Instant::saturating_duration_since(self, earlier)
        }
    }
}
