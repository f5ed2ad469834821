//! What a build for the fault harness does more: it tells of stores to shared memory, and has bugs on
//! demand. No other build contains this file.

use super::futex;
use std::sync::atomic::{self, Ordering};
use std::time::Duration;

/// The marker by which the harness knows this call from other programs'.
const STORE_MARK: libc::c_ulong = 0x7848_5354;

/// Makes a system call that does nothing, before a store to shared memory. A supervisor sees it.
fn announce_store() {
    // SAFETY: `getppid` ignores its arguments and cannot fail.
    unsafe { libc::syscall(libc::SYS_getppid, STORE_MARK) };
}

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

            /// Returns the word itself, for system calls.
            pub(crate) fn word(&self) -> &atomic::$name {
                &self.0
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

/// Sleeps as `futex::sleep` does.
pub(crate) fn sleep(word: &AtomicU64, expected: u32, limit: Duration) {
    futex::sleep(&word.0, expected, limit);
}

/// Sleeps as `futex::sleep_any` does.
pub(crate) fn sleep_any(words: &[(&AtomicU64, u32)], limit: Duration) {
    let words: Vec<_> = words
        .iter()
        .map(|(word, expected)| (&word.0, *expected))
        .collect();
    futex::sleep_any(&words, limit);
}

/// Wakes as `futex::wake_all` does.
pub(crate) fn wake_all(word: &AtomicU64) {
    futex::wake_all(&word.0);
}

/// Returns whether the environment asks for this bug.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: &str) -> bool {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<String> = OnceLock::new();
    let planted =
        PLANTED.get_or_init(|| std::env::var("CROSSHANDLE_PLANTED_BUG").unwrap_or_default());
    planted == bug
}
