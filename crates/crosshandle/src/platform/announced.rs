//! Atomics that tell of each store before they make it, for the fault harness.

use crate::os::fault_steps::announce_store;
use crate::os::futex;
use crate::threads::exchange;
use std::sync::atomic::{self, Ordering};
use std::time::Duration;

macro_rules! announced {
    ($name:ident, $word:ty) => {
        /// A shared word whose stores are announced.
        #[repr(transparent)]
        #[derive(Default, Debug)]
        pub(crate) struct $name(atomic::$name);

        #[allow(dead_code)] // As complete as the standard library's, as far as anyone needs it.
        impl $name {
            pub(crate) const fn new(value: $word) -> Self {
                Self(atomic::$name::new(value))
            }

            #[inline]
            pub(crate) fn load(&self, order: Ordering) -> $word {
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: $word, order: Ordering) {
                announce_store();
                self.0.store(value, order);
            }

            pub(crate) fn swap(&self, value: $word, order: Ordering) -> $word {
                announce_store();
                self.0.swap(value, order)
            }

            pub(crate) fn compare_exchange(
                &self,
                current: $word,
                new: $word,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$word, $word> {
                announce_store();
                self.0.compare_exchange(current, new, success, failure)
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                current: $word,
                new: $word,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$word, $word> {
                announce_store();
                // The strong form, so that a play is repeated as it was.
                self.0.compare_exchange(current, new, success, failure)
            }

            pub(crate) fn fetch_add(&self, value: $word, order: Ordering) -> $word {
                announce_store();
                self.0.fetch_add(value, order)
            }

            pub(crate) fn fetch_sub(&self, value: $word, order: Ordering) -> $word {
                announce_store();
                self.0.fetch_sub(value, order)
            }

            pub(crate) fn fetch_or(&self, value: $word, order: Ordering) -> $word {
                announce_store();
                self.0.fetch_or(value, order)
            }

            pub(crate) fn fetch_and(&self, value: $word, order: Ordering) -> $word {
                announce_store();
                self.0.fetch_and(value, order)
            }

            pub(crate) fn fetch_max(&self, value: $word, order: Ordering) -> $word {
                announce_store();
                self.0.fetch_max(value, order)
            }
        }
    };
}

announced!(AtomicU32, u32);
announced!(AtomicU64, u64);

/// Sleeps as `threads::exchange::sleep` does.
pub(crate) fn sleep(word: &AtomicU64, expected: u32, limit: Duration) {
    exchange::sleep(&word.0, expected, limit);
}

/// Sleeps as `os::futex::sleep_any` does.
pub(crate) fn sleep_any(words: &[(&AtomicU64, u32)], limit: Duration) {
    let words: Vec<_> = words
        .iter()
        .map(|(word, expected)| (&word.0, *expected))
        .collect();
    futex::sleep_any(&words, limit);
}

/// Wakes as `os::futex::wake_all` does.
pub(crate) fn wake_all(word: &AtomicU64) {
    futex::wake_all(&word.0);
}
