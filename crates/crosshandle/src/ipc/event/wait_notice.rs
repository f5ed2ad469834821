//! The notice that a thread of this process begins to wait for a signal.
//!
//! Threads that delay work in order to do more of it at once look here, and stop delaying.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The number of waits that have begun. Spun on, so it has a cache line of its own.
static WAITS: CacheLine = CacheLine(AtomicU64::new(0));

#[repr(align(64))]
struct CacheLine(AtomicU64);

/// Gives notice of a wait, unless its deadline has passed: then the caller only looks.
pub(crate) fn give(deadline: Option<Instant>) {
    if deadline.is_none_or(|deadline| Instant::now() < deadline) {
        WAITS.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the number of notices given so far.
pub(crate) fn count() -> u64 {
    WAITS.0.load(Ordering::Relaxed)
}
