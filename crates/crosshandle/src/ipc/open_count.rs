//! The rule by which a freed record is used again: generations against open counts.
//!
//! An importer counts first and looks at the generation after; the exporter changes the generation
//! first and looks at the counts after. All of it is sequentially consistent, so at least one of
//! them sees the other: no record is used again while an importer that opened it still has it open.
//!
//! The lowest two bits of a generation are the kind of the object, or 0 while the record is free;
//! the others count the record's uses. A record that is used a million times a second comes to the
//! same generation again after a hundred thousand years.

use crate::platform::{AtomicU32, AtomicU64, Ordering};

/// Bits of a generation that hold the kind of the object.
const KIND_BITS: u64 = 3;

/// Counts one open of a record whose generation is `expected`; otherwise counts nothing and returns
/// `false`.
#[inline]
pub(crate) fn try_open(count: &AtomicU32, generation: &AtomicU64, expected: u64) -> bool {
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

/// Puts a record to a new use, for an object of this kind, and returns its generation.
pub(crate) fn start_generation(generation: &AtomicU64, kind: u64) -> u64 {
    let next = (generation.load(Ordering::Relaxed) | KIND_BITS).wrapping_add(1) | kind;
    generation.store(next, Ordering::Release);
    next
}

/// Makes every handle to the record stale.
pub(crate) fn end_generation(generation: &AtomicU64) {
    let now = generation.load(Ordering::SeqCst);
    generation.store(now & !KIND_BITS, Ordering::SeqCst);
}
