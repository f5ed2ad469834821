//! The rule that decides when a freed record may be reused, based on generations and open counts.
//!
//! An importer first counts its open and then reads the generation. The exporter first changes the
//! generation and then reads the counts. All these operations are sequentially consistent, so at
//! least one side sees the other. No record is therefore reused while an importer has it open.
//!
//! The lowest two bits of a generation are the kind of the object, or 0 while the record is free.
//! The upper bits count the uses of the record. A record that is reused a million times a second
//! reaches the same generation again after a hundred thousand years.

use crate::platform::{Atomic, Ordering};

/// Bits of a generation that hold the kind of the object.
const KIND_BITS: u64 = 3;

/// Counts one open of a record if its generation is `expected`. Otherwise the count does not
/// change, and the result is `false`.
#[inline]
pub fn try_open(count: &impl Atomic<u32>, generation: &impl Atomic<u64>, expected: u64) -> bool {
    count.fetch_add(1, Ordering::SeqCst);
    if generation.load(Ordering::SeqCst) == expected {
        return true;
    }
    close(count);
    false
}

/// Ends one open of a record.
#[inline]
pub fn close(count: &impl Atomic<u32>) {
    count.fetch_sub(1, Ordering::SeqCst);
}

/// Returns whether an importer has the record open.
pub fn is_open(count: &impl Atomic<u32>) -> bool {
    count.load(Ordering::SeqCst) != 0
}

/// Starts a new use of a record for an object of this kind, and returns the new generation.
pub fn start_generation(generation: &impl Atomic<u64>, kind: u64) -> u64 {
    let next = (generation.load(Ordering::Relaxed) | KIND_BITS).wrapping_add(1) | kind;
    generation.store(next, Ordering::Release);
    next
}

/// Makes every handle to the record stale.
pub fn end_generation(generation: &impl Atomic<u64>) {
    let now = generation.load(Ordering::SeqCst);
    generation.store(now & !KIND_BITS, Ordering::SeqCst);
}
