//! The parts of a channel's file.

use super::members::Card;
use super::owners::{MAX_OWNERS, OwnerProcess};
use crate::platform::{AtomicU64, Os};
use crosshandle_events::channel::{Head, Member, Shape};
use crosshandle_os::mapping::{Mapping, page_size};

/// Bit sets of the members that want to be signalled when they may continue, one bit for each.
#[repr(C, align(64))]
pub(super) struct Armed {
    pub(super) producers: AtomicU64,
    pub(super) consumers: AtomicU64,
}

/// The offsets of the parts of the file, in bytes.
pub(super) struct Layout {
    pub(super) armed: usize,
    pub(super) ring: usize,
    pub(super) slots: usize,
    pub(super) producers: usize,
    pub(super) consumers: usize,
    pub(super) producer_cards: usize,
    pub(super) consumer_cards: usize,
    pub(super) settled: usize,
    pub(super) owners: usize,
    pub(super) len: usize,
}

impl Layout {
    pub(super) fn of(shape: &Shape) -> Self {
        let mut end = size_of::<Head<Os>>();
        let mut place = |bytes: usize| {
            let start = end.next_multiple_of(64);
            end = start + bytes;
            start
        };
        let (producers, consumers) = (shape.producers().into(), usize::from(shape.consumers()));
        let producers: usize = producers;
        Self {
            armed: place(size_of::<Armed>()),
            ring: place(shape.depth() as usize * size_of::<AtomicU64>()),
            slots: place(usize::from(shape.slots()) * size_of::<AtomicU64>()),
            producers: place(producers * size_of::<Member<Os>>()),
            consumers: place(consumers * size_of::<Member<Os>>()),
            producer_cards: place(producers * size_of::<Card>()),
            consumer_cards: place(consumers * size_of::<Card>()),
            settled: place(usize::from(shape.slots()) * size_of::<AtomicU64>()),
            owners: place(usize::from(MAX_OWNERS) * size_of::<OwnerProcess>()),
            len: end.next_multiple_of(page_size()),
        }
    }
}

/// Returns `len` elements of a part of the mapping.
///
/// # Safety
/// The elements must lie in the mapping, aligned, for as long as the result is used, and any bytes
/// must be valid values that other processes may change.
pub(super) unsafe fn part<T>(mapping: &Mapping, offset: usize, len: usize) -> &'static [T] {
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts(mapping.start().add(offset).cast::<T>().as_ptr(), len) }
}
