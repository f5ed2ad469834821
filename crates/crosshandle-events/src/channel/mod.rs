//! The state machine of a channel: words in shared memory by which producers pass slots to
//! consumers.
//!
//! A channel has a fixed number of *slots*. A producer *reserves* a slot, writes an item into it,
//! and *publishes* it. A consumer *receives* the slot, reads the item, and *releases* the slot. The
//! words say which process may use which slot. They do not contain the items, and the caller
//! decides where the slots lie.
//!
//! # Words
//! - The *ring* has one word for each item that waits to be received ([`words`]). Item *n* is in
//!   word `n mod depth`. The word holds the item's number and its slot. Only producers write it.
//! - `tail` is the number of the next item. It may lag, because the ring is authoritative. Every
//!   process that finds it lagging advances it.
//! - `head` is the number of the next item of a queue that no consumer has taken.
//! - Each slot has a state word with the number of its latest item, and with the producer that
//!   writes to it.
//! - Each producer and each consumer is a *member* with a word for its life. A consumer also has a
//!   cursor and a list of the slots that it holds.
//!
//! # Publishing
//! One compare-and-swap on the ring publishes an item. It replaces the item that was `depth` items
//! earlier, so a process that is killed at any step leaves no gap. A broadcast, and a queue that
//! drops the oldest item, may replace an item that no consumer has taken.
//!
//! # Holding
//! A consumer records a slot in its list *before* it takes the item by advancing `head` or its
//! cursor. A producer that waits for room reads these counters *before* it reads the lists, so it
//! sees the record. If the channel drops the oldest items, the producer replaces items without
//! regard to the counters. The consumer then verifies after the record that the ring still names
//! the slot, and the producer removes the slot from the ring before it reads the lists. These
//! operations are sequentially consistent, so at least one side sees the other.
//!
//! A slot is free if the ring does not name it for an item that a consumer can still take, no
//! living consumer holds it, and no living producer writes to it.
//!
//! # Cache lines
//! An item of a queue with one producer and one consumer moves one cache line of words from the
//! producer to the consumer, the one of the ring. The producer reads the words of the consumer only
//! when it has used all slots that it had found free, or all room. It does not read the ring before
//! it publishes. The consumer reads all new words of a line at once. A member that has found
//! nothing to do pauses before it polls again, so that the other member can change several words of
//! a line.
//!
//! # Death
//! A survivor changes the word of the dead member with one compare-and-swap. From then on its list,
//! its cursor and its reservations have no effect. Nothing else has to be repaired, so a survivor
//! may be killed or stopped at any step too. An item that a dead consumer had taken is treated
//! as delivered, so no item is delivered twice.
//!
//! # Hostile members
//! Any process that has the channel open can write to all words. The functions of this module check
//! every index and limit every loop. A hostile member can spoil items and stop the channel, but it
//! cannot make another member access memory outside the channel.

mod consumer;
mod members;
mod producer;
mod shape;
mod waiting;
mod words;

pub use consumer::{Consumer, Item, Received};
pub use members::{Member, MemberKey, Peers, Presence};
pub use producer::Producer;
pub use shape::{Delivery, MAX_HELD, MAX_MEMBERS, Shape, WhenFull};
pub use waiting::LIVENESS_INTERVAL;
pub use words::Head;

use crate::platform::{Atomic, Ordering, Platform};
use words::{Cursor, Position, SlotState};

/// The reason why an operation on a channel failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChannelError {
    /// The deadline passed.
    TimedOut,
    /// The program interrupted the call.
    Interrupted,
    /// The role has no free place.
    NoPlace,
    /// The member holds as many slots as the channel allows it.
    TooManyHeld,
    /// No slot is free until the queue that writes the item in this slot has ended its work.
    Unfinished {
        /// The slot.
        slot: u16,
    },
    /// Every producer has left or died, and no item is left.
    NoProducer {
        /// Whether at least one of the producers died.
        died: bool,
    },
    /// A member wrote values into the channel's words that the state machine never writes.
    Corrupt,
}

/// The words of a channel, which lie in shared memory.
pub struct Channel<'a, P: Platform> {
    shape: Shape,
    head: &'a Head<P>,
    ring: &'a [P::AtomicU64],
    slots: &'a [P::AtomicU64],
    producers: &'a [Member<P>],
    consumers: &'a [Member<P>],
}

impl<P: Platform> Clone for Channel<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Channel<'_, P> {}

impl<'a, P: Platform> Channel<'a, P> {
    /// Returns the channel with these words. Returns `None` if their numbers do not match the
    /// shape.
    pub fn new(
        shape: Shape,
        head: &'a Head<P>,
        ring: &'a [P::AtomicU64],
        slots: &'a [P::AtomicU64],
        producers: &'a [Member<P>],
        consumers: &'a [Member<P>],
    ) -> Option<Self> {
        let matches = ring.len() == shape.depth() as usize
            && slots.len() == usize::from(shape.slots())
            && producers.len() == usize::from(shape.producers())
            && consumers.len() == usize::from(shape.consumers());
        matches.then_some(Self {
            shape,
            head,
            ring,
            slots,
            producers,
            consumers,
        })
    }

    /// Writes the initial values. The memory is zeroed, and no other process has it open.
    pub fn initialise(&self) {
        for (index, word) in self.ring.iter().enumerate() {
            word.store(
                Position::initial(index, self.shape.depth()).0,
                Ordering::Release,
            );
        }
        for word in self.slots {
            word.store(SlotState::UNUSED.0, Ordering::Release);
        }
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the number of items that were published so far.
    pub fn published(&self) -> u64 {
        let tail = self.head.tail.load(Ordering::Acquire);
        // A producer that was killed between its two last steps has left the tail one item behind.
        if self.load_position(tail).distance(tail) != 0 {
            return tail;
        }
        Self::advance(&self.head.tail, tail);
        tail.wrapping_add(1)
    }

    /// Returns the number of the latest published item in a slot, as far as the slot's state keeps
    /// it. Returns `None` while a producer writes to the slot. The only producer of a channel knows
    /// itself to which slots it writes.
    pub fn latest_in(&self, slot: u16) -> Option<u64> {
        let state = SlotState(self.slots.get(usize::from(slot))?.load(Ordering::SeqCst));
        state.writer().is_none().then_some(state.number())
    }

    fn position(&self, number: u64) -> &'a P::AtomicU64 {
        &self.ring[number as usize & (self.ring.len() - 1)]
    }

    fn load_position(&self, number: u64) -> Position {
        Position(self.position(number).load(Ordering::SeqCst))
    }

    /// Returns whether a word shows that its item `number` was not published yet.
    fn is_unpublished(&self, position: Position, number: u64) -> bool {
        position.distance(number) == -(self.shape.depth() as i32)
    }

    fn load_slot(&self, slot: u16) -> SlotState {
        SlotState(self.slots[usize::from(slot)].load(Ordering::SeqCst))
    }

    /// Returns whether the ring names the slot for an item that a consumer can still take. `head`
    /// is the number of the next item of a queue.
    fn is_in_ring(&self, slot: u16, state: SlotState, head: u64) -> bool {
        let position = self.load_position(state.number());
        let is_named =
            position.is_used() && position.slot() == slot && position.distance(state.number()) == 0;
        is_named && !(self.shape.delivery() == Delivery::Queue && state.is_before(head))
    }

    /// Returns the number of the next item of a queue that no consumer has taken.
    fn load_head(&self) -> Cursor {
        Cursor(self.head.head.load(Ordering::SeqCst))
    }

    /// Returns whether only one producer can exist, so that no other producer takes a free slot.
    fn has_sole_producer(&self) -> bool {
        self.shape.producers() == 1
    }

    /// Advances the tail after this member has published item `number`.
    fn advance_tail(&self, number: u64) {
        match self.has_sole_producer() {
            // Other members advance the tail only up to this value.
            true => (self.head.tail).store(number.wrapping_add(1), Ordering::Release),
            false => Self::advance(&self.head.tail, number),
        }
    }

    /// Advances a counter by one if it still has this value.
    fn advance(counter: &P::AtomicU64, number: u64) {
        let _ = counter.compare_exchange(
            number,
            number.wrapping_add(1),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }
}
