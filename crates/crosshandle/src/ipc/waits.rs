//! That somebody of this process begins to wait for a signal, for threads that would let it wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Waits that have begun, in this process. Spun on, so it has a cache line of its own.
static BEGUN: Apart = Apart(AtomicU64::new(0));

#[repr(align(64))]
struct Apart(AtomicU64);

/// Tells them that somebody waits, unless he only looks.
pub(crate) fn begin(deadline: Option<Instant>) {
    if deadline.is_none_or(|deadline| Instant::now() < deadline) {
        BEGUN.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Changes when somebody begins to wait.
pub(crate) fn begun() -> u64 {
    BEGUN.0.load(Ordering::Relaxed)
}
