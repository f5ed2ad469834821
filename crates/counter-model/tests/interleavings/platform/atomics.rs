//! Atomic words whose every operation is a step of the model.

use super::chance::one_in;
use super::fate::step;
use crosshandle_events::impl_atomic;
use shuttle::sync::atomic as model;
use std::sync::atomic::Ordering;

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// An atomic word with the standard library's interface. The checker treats every ordering
        /// as `SeqCst`.
        pub(crate) struct $name(model::$name);

        #[allow(dead_code, reason = "one interface, used in part by each test program")]
        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                Self(model::$name::new(value))
            }

            /// Reads the word for the kernel. A system call of a killed process still runs to its
            /// end.
            pub(super) fn peek(&self) -> $value {
                self.0.load(Ordering::SeqCst)
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                step();
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                if step() {
                    self.0.store(value, order);
                }
            }

            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                if step() {
                    self.0.swap(value, order)
                } else {
                    self.peek()
                }
            }

            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                if step() {
                    self.0.compare_exchange(current, new, success, failure)
                } else {
                    Ok(current)
                }
            }

            /// Fails spuriously once in 16 times, as real machines may.
            pub(crate) fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                if one_in(16) {
                    return Err(self.load(failure));
                }
                self.compare_exchange(current, new, success, failure)
            }

            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                if step() {
                    self.0.fetch_add(value, order)
                } else {
                    self.peek()
                }
            }

            pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                if step() {
                    self.0.fetch_sub(value, order)
                } else {
                    self.peek()
                }
            }

            pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                if step() {
                    self.0.fetch_or(value, order)
                } else {
                    self.peek()
                }
            }

            pub(crate) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                if step() {
                    self.0.fetch_and(value, order)
                } else {
                    self.peek()
                }
            }

            pub(crate) fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                if step() {
                    self.0.fetch_max(value, order)
                } else {
                    self.peek()
                }
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
impl_atomic!(AtomicU32, u32);
impl_atomic!(AtomicU64, u64);

impl AtomicU64 {
    /// Writes the upper half and keeps the lower half, like a device. This is not a step of any
    /// process, because a device continues after its process was killed.
    pub(crate) fn write_upper(&self, value: u32) {
        let write = |word| Some(u64::from(value) << 32 | word & u64::from(u32::MAX));
        let written = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, write);
        assert!(written.is_ok());
    }

    /// Reads the upper half, like a device.
    pub(crate) fn read_upper(&self) -> u32 {
        (self.0.load(Ordering::SeqCst) >> 32) as u32
    }
}
