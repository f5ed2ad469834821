//! The rule by which a freed record is used again: generations against open counts.
//!
//! An importer counts first and looks at the generation after; the exporter changes the generation
//! first and looks at the counts after. All of it is sequentially consistent, so at least one of
//! them sees the other: no record is used again while an importer that opened it still has it open.

use crate::platform::{AtomicU32, Ordering};

/// Counts one open of a record whose generation is `expected`; otherwise counts nothing and returns
/// `false`.
#[inline]
pub(crate) fn try_open(count: &AtomicU32, generation: &AtomicU32, expected: u32) -> bool {
    #[cfg(feature = "planted-bugs")]
    if crate::platform::is_planted("early-reuse") {
        let is_current = generation.load(Ordering::SeqCst) == expected;
        if is_current {
            count.fetch_add(1, Ordering::SeqCst);
        }
        return is_current;
    }
    count.fetch_add(1, Ordering::SeqCst);
    if generation.load(Ordering::SeqCst) == expected {
        return true;
    }
    close(count);
    false
}

/// Ends one open of a record.
#[inline]
pub(crate) fn close(count: &AtomicU32) {
    count.fetch_sub(1, Ordering::SeqCst);
}

/// Returns whether an importer has the record open.
pub(crate) fn is_open(count: &AtomicU32) -> bool {
    count.load(Ordering::SeqCst) != 0
}

/// Puts a record to a new use and returns its generation, which is odd.
pub(crate) fn start_generation(generation: &AtomicU32) -> u32 {
    let next = generation.load(Ordering::Relaxed).wrapping_add(1) | 1;
    generation.store(next, Ordering::Release);
    next
}

/// Makes every handle to the record stale.
pub(crate) fn end_generation(generation: &AtomicU32) {
    let next = generation.load(Ordering::SeqCst).wrapping_add(1) & !1;
    generation.store(next, Ordering::SeqCst);
}
