//! The words of a channel, bit by bit.

use crate::platform::Platform;

/// Counters that every member reads. Each has a cache line of its own, because producers write one
/// and consumers the other.
#[repr(C, align(64))]
pub struct Head<P: Platform> {
    /// Number of the next item.
    pub(super) tail: P::AtomicU64,
    _producers_line: [P::AtomicU64; 7],
    /// Number of the next item that no consumer of a queue has taken, as a [`Cursor`].
    pub(super) head: P::AtomicU64,
    _consumers_line: [P::AtomicU64; 7],
}

impl<P: Platform> Default for Head<P> {
    fn default() -> Self {
        use crate::platform::Atomic;
        Self {
            tail: P::AtomicU64::new(0),
            _producers_line: std::array::from_fn(|_| P::AtomicU64::new(0)),
            head: P::AtomicU64::new(0),
            _consumers_line: std::array::from_fn(|_| P::AtomicU64::new(0)),
        }
    }
}

/// A word of the ring. Consumers sleep on its upper half.
///
/// - 0, `SLEEPERS`: members sleep until the upper half changes.
/// - 16–31: slot of the item.
/// - 32, `UNUSED`: the word has held no item yet.
/// - 33–40: number of departures of members that woke the sleepers of this word, which wraps.
/// - 41–63: lower 23 bits of the item's number. The state of the item's slot has more of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Position(pub(super) u64);

impl Position {
    pub(super) const SLEEPERS: u64 = 1;
    const SLOT_SHIFT: u32 = 16;
    const UNUSED: u64 = 1 << 32;
    const DEPARTURE: u64 = 1 << 33;
    const DEPARTURES: u64 = 0xff << 33;
    const NUMBER_SHIFT: u32 = 41;

    pub(super) const fn new(number: u64, slot: u16) -> Self {
        Self(number << Self::NUMBER_SHIFT | (slot as u64) << Self::SLOT_SHIFT)
    }

    /// Returns the first value of a word, which no item precedes.
    pub(super) const fn initial(index: usize, depth: u32) -> Self {
        let number = (index as u64).wrapping_sub(depth as u64);
        Self(Self::new(number, 0).0 | Self::UNUSED)
    }

    pub(super) const fn slot(self) -> u16 {
        (self.0 >> Self::SLOT_SHIFT) as u16
    }

    /// Returns whether the word holds an item.
    pub(super) const fn is_used(self) -> bool {
        self.0 & Self::UNUSED == 0
    }

    /// Returns the word after a departure, which has another upper half. Cursors have the same bits
    /// for departures and sleepers.
    pub(super) const fn after_departure(self) -> Self {
        let departures = (self.0 & Self::DEPARTURES).wrapping_add(Self::DEPARTURE);
        let others = self.0 & !(Self::DEPARTURES | Self::SLEEPERS);
        Self(others | departures & Self::DEPARTURES)
    }

    /// Returns whether both words name the same item in the same slot.
    pub(super) const fn is_same_item(self, other: Self) -> bool {
        self.0 >> Self::NUMBER_SHIFT == other.0 >> Self::NUMBER_SHIFT && self.slot() == other.slot()
    }

    /// Returns the difference between the word's number and `number`, wrapped to 23 bits. It is 0
    /// if the word holds that item, and minus the depth if the item was not published yet. If later
    /// items have replaced the item, the difference can have any value, even a negative one.
    pub(super) const fn distance(self, number: u64) -> i32 {
        let difference = (self.0 >> Self::NUMBER_SHIFT).wrapping_sub(number) as u32;
        ((difference << 9) as i32) >> 9
    }
}

/// The position of one consumer of a broadcast, or of all consumers of a queue. Producers sleep on
/// its upper half.
///
/// - 0 and 33–40: as in a [`Position`].
/// - 1–31: upper 31 bits of the number of the next item.
/// - 41–63: lower 23 bits of that number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cursor(pub(super) u64);

impl Cursor {
    const LOW_BITS: u32 = 23;
    const HIGH: u64 = (1 << 31) - 1;

    pub(super) const fn new(number: u64) -> Self {
        let high = number >> Self::LOW_BITS & Self::HIGH;
        Self(number << Position::NUMBER_SHIFT | high << 1)
    }

    /// Returns the number of the next item.
    pub(super) const fn number(self) -> u64 {
        let high = self.0 >> 1 & Self::HIGH;
        high << Self::LOW_BITS | self.0 >> Position::NUMBER_SHIFT
    }
}

/// The state word of a slot.
///
/// - 0–6: index of the producer that writes to the slot, plus 1, or 0 if none does.
/// - 7, `UNFINISHED`: a queue may still write the item after its publication.
/// - 8–15: lower bits of that producer's generation.
/// - 16–63: number of the latest item in the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SlotState(pub(super) u64);

impl SlotState {
    const NUMBER_SHIFT: u32 = 16;
    const UNFINISHED: u64 = 1 << 7;
    /// The state of a slot that no item was in yet.
    pub(super) const UNUSED: Self = Self::idle(u64::MAX);

    /// Returns the state of a slot that no producer writes to.
    pub(super) const fn idle(number: u64) -> Self {
        Self(number << Self::NUMBER_SHIFT)
    }

    /// Returns the state of a slot that a producer writes to.
    pub(super) const fn written_by(number: u64, index: u8, generation: u32) -> Self {
        let writer = (generation as u8 as u64) << 8 | (index as u64 + 1);
        Self(Self::idle(number).0 | writer)
    }

    pub(super) const fn number(self) -> u64 {
        self.0 >> Self::NUMBER_SHIFT
    }

    /// Returns whether item `next` and the items after it are later than the slot's item.
    pub(super) const fn is_before(self, next: u64) -> bool {
        let ahead = next.wrapping_sub(self.number()) << Self::NUMBER_SHIFT;
        ahead as i64 > 0
    }

    /// Returns the state with the mark that a queue may still write the item.
    pub(super) const fn unfinished_if(self, is_unfinished: bool) -> Self {
        Self(self.0 | if is_unfinished { Self::UNFINISHED } else { 0 })
    }

    pub(super) const fn is_unfinished(self) -> bool {
        self.0 & Self::UNFINISHED != 0
    }

    /// Returns the index and the generation of the writer.
    pub(super) fn writer(self) -> Option<(usize, u8)> {
        let index = usize::from(self.0 as u8 & 0x7f).checked_sub(1)?;
        Some((index, (self.0 >> 8) as u8))
    }
}

/// Returns the part of an item's number that a slot's state holds.
pub(super) const fn in_slot(number: u64) -> u64 {
    SlotState::idle(number).number()
}
