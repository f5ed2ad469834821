//! Loom's atomic words, wrapped so that loom explores every order.
//!
//! Loom (0.7) decides which orders of operations to try by the latest access to each word, and for
//! loads only by the latest store. A load followed by a compare-and-swap of one thread therefore
//! hides an earlier load of another thread. Loom never tries the order in which that load comes
//! last. So every operation here starts with a read-modify-write of a second word, `turn`, on which
//! no access hides another. That operation is relaxed and orders nothing.

use crosshandle_events::impl_atomic;
use loom::sync::atomic as model;
use std::sync::atomic::Ordering;

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// An atomic word with the standard library's interface.
        pub(crate) struct $name {
            word: model::$name,
            turn: model::AtomicU32,
        }

        #[allow(dead_code, reason = "one interface for both widths")]
        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                Self {
                    word: model::$name::new(value),
                    turn: model::AtomicU32::new(0),
                }
            }

            /// Performs an operation on `turn`, and then returns the word.
            fn turn(&self) -> &model::$name {
                self.turn.fetch_add(0, Ordering::Relaxed);
                &self.word
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.turn().load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.turn().store(value, order);
            }

            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.turn().compare_exchange(current, new, success, failure)
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.turn().fetch_or(value, order)
            }

            pub(crate) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.turn().fetch_and(value, order)
            }

            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.turn().fetch_add(value, order)
            }

            pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.turn().fetch_sub(value, order)
            }

            pub(crate) fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                self.turn().fetch_max(value, order)
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
impl_atomic!(AtomicU32, u32);
impl_atomic!(AtomicU64, u64);
