//! Shared words that announce each store to the fault harness. Only builds for the fault harness
//! contain this file.

use crosshandle_os::fault_steps::announce_store;
use crosshandle_os::futex;
use std::sync::atomic::{self, Ordering};
use std::time::Duration;

macro_rules! announced {
    ($name:ident, $word:ty) => {
        /// A shared word that announces its stores.
        #[repr(transparent)]
        #[derive(Default, Debug)]
        pub struct $name(atomic::$name);

        #[allow(dead_code)] // As complete as the standard library's, as far as anyone needs it.
        impl $name {
            pub const fn new(value: $word) -> Self {
                Self(atomic::$name::new(value))
            }

            /// Returns the word itself, for system calls.
            pub fn word(&self) -> &atomic::$name {
                &self.0
            }

            #[inline]
            pub fn load(&self, order: Ordering) -> $word {
                self.0.load(order)
            }

            pub fn store(&self, value: $word, order: Ordering) {
                announce_store();
                self.0.store(value, order);
            }

            pub fn swap(&self, value: $word, order: Ordering) -> $word {
                announce_store();
                self.0.swap(value, order)
            }

            pub fn compare_exchange(
                &self,
                current: $word,
                new: $word,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$word, $word> {
                announce_store();
                self.0.compare_exchange(current, new, success, failure)
            }

            pub fn compare_exchange_weak(
                &self,
                current: $word,
                new: $word,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$word, $word> {
                announce_store();
                // It never fails spuriously, so runs are repeatable.
                self.0.compare_exchange(current, new, success, failure)
            }

            pub fn fetch_add(&self, value: $word, order: Ordering) -> $word {
                announce_store();
                self.0.fetch_add(value, order)
            }

            pub fn fetch_sub(&self, value: $word, order: Ordering) -> $word {
                announce_store();
                self.0.fetch_sub(value, order)
            }

            pub fn fetch_or(&self, value: $word, order: Ordering) -> $word {
                announce_store();
                self.0.fetch_or(value, order)
            }

            pub fn fetch_and(&self, value: $word, order: Ordering) -> $word {
                announce_store();
                self.0.fetch_and(value, order)
            }

            pub fn fetch_max(&self, value: $word, order: Ordering) -> $word {
                announce_store();
                self.0.fetch_max(value, order)
            }
        }
    };
}

announced!(AtomicU32, u32);
announced!(AtomicU64, u64);
crosshandle_events::impl_atomic!(AtomicU32, u32);
crosshandle_events::impl_atomic!(AtomicU64, u64);

/// Sleeps like `futex::sleep`.
pub(super) fn sleep(word: &AtomicU64, expected: u32, limit: Duration) {
    futex::sleep(&word.0, expected, limit);
}

/// Sleeps like `futex::sleep_any`.
pub(super) fn sleep_any(words: &[(&AtomicU64, u32)], limit: Duration) {
    let words: Vec<_> = words
        .iter()
        .map(|(word, expected)| (&word.0, *expected))
        .collect();
    futex::sleep_any(&words, limit);
}

/// Wakes like `futex::wake_all`.
pub(super) fn wake_all(word: &AtomicU64) {
    futex::wake_all(&word.0);
}
