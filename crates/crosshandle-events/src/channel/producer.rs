//! Producers: reserving slots and publishing items.

use super::members::{MemberKey, Peers};
use super::shape::{Delivery, WhenFull};
use super::waiting::{self, MAX_ATTEMPTS, Patience};
use super::words::{Cursor, Position, SlotState};
use super::{Channel, ChannelError};
use crate::platform::{Atomic, Ordering, Platform};

/// A producer of a channel. It contains what only this producer needs to know, and is useless with
/// another channel.
pub struct Producer {
    key: MemberKey,
    /// Slots that this producer owns and that are free.
    spare: Vec<u16>,
    /// The spare slots and the reserved ones, one bit for each.
    owned: Vec<u64>,
    /// Number of slots that the caller has reserved.
    reserved: u8,
    /// Whether each reservation looks for slots that have become free.
    prefers_recent: bool,
    /// Slots that left the ring and that may become free. Other producers may take them.
    candidates: Vec<u16>,
    /// The candidates of the previous attempt, whose memory is used again.
    earlier: Vec<u16>,
    /// Candidates that are not in the ring, while they are being checked.
    outside: Vec<(u16, SlotState)>,
    /// A slot that a queue still wrote when slots were last sought.
    unfinished: Option<u16>,
    /// Slots that consumers held when they were last read, one bit for each.
    held: Vec<u64>,
    /// A number up to which all consumers have advanced.
    passed: u64,
    /// Number of the next item, if this is the only producer and has published before.
    next: Option<u64>,
    /// Number of the first item whose slot was not among the candidates.
    examined: u64,
    patience: Patience,
}

impl Producer {
    /// Returns the member that this producer is.
    pub fn key(&self) -> MemberKey {
        self.key
    }

    /// Sets whether the producer reserves the slot that has become free most recently, whose bytes
    /// may still be in caches. Otherwise it looks for free slots only when it has used all that it
    /// knows, which takes less time for each item.
    pub fn prefer_recent(&mut self, prefers: bool) {
        self.prefers_recent = prefers;
    }

    fn owns(&self, slot: u16) -> bool {
        self.owned[usize::from(slot / 64)] & bit(slot) != 0
    }

    fn add_spare(&mut self, slot: u16) {
        self.owned[usize::from(slot / 64)] |= bit(slot);
        self.spare.push(slot);
    }

    fn disown(&mut self, slot: u16) {
        self.owned[usize::from(slot / 64)] &= !bit(slot);
    }
}

/// Returns the bit of a slot in its word of a bit set.
fn bit(slot: u16) -> u64 {
    1 << (slot % 64)
}

impl<P: Platform> Channel<'_, P> {
    /// Adds a producer whose process has the number `owner`.
    ///
    /// # Errors
    /// Returns [`ChannelError::NoPlace`] if the channel has its maximum number of living producers.
    pub fn join_producer(&self, owner: u16, peers: &dyn Peers) -> Result<Producer, ChannelError> {
        let key = Self::join(self.producers, owner, peers)?;
        Ok(Producer {
            key,
            // No operation of a producer allocates, so the lists have room for all slots.
            spare: Vec::with_capacity(self.slots.len()),
            owned: vec![0; self.slots.len().div_ceil(64)],
            reserved: 0,
            prefers_recent: false,
            candidates: Vec::with_capacity(self.slots.len()),
            earlier: Vec::with_capacity(self.slots.len()),
            outside: Vec::with_capacity(self.slots.len()),
            unfinished: None,
            held: vec![0; self.slots.len().div_ceil(64)],
            passed: 0,
            next: None,
            examined: 0,
            patience: Patience::default(),
        })
    }

    /// Reserves a slot for an item. Never waits for another member.
    ///
    /// # Errors
    /// Returns [`ChannelError::TooManyHeld`] if the producer has its maximum number of reserved
    /// slots, [`ChannelError::Unfinished`] if queues still write all other slots, and
    /// [`ChannelError::Corrupt`] if no slot is free, which honest members rule out.
    pub fn reserve(&self, producer: &mut Producer, peers: &dyn Peers) -> Result<u16, ChannelError> {
        if producer.reserved >= self.shape.reserved() {
            return Err(ChannelError::TooManyHeld);
        }
        if producer.prefers_recent {
            self.acquire_candidates(producer, peers);
        }
        for attempt in 0..MAX_ATTEMPTS {
            if let Some(slot) = producer.spare.pop() {
                producer.reserved += 1;
                return Ok(slot);
            }
            if attempt == 0 {
                self.acquire_candidates(producer, peers);
                continue;
            }
            producer.candidates.clear();
            self.acquire_free(producer, 0..self.shape.slots(), peers);
            if attempt > 1 {
                if producer.spare.is_empty()
                    && let Some(slot) = producer.unfinished
                {
                    return Err(ChannelError::Unfinished { slot });
                }
                self.remove_dead(peers);
                P::spin_hint();
            }
        }
        Err(ChannelError::Corrupt)
    }

    /// Makes the producer the owner of those candidates that are free. The slots that became free
    /// last are reserved first.
    fn acquire_candidates(&self, producer: &mut Producer, peers: &dyn Peers) {
        self.note_taken(producer);
        let mut candidates = std::mem::take(&mut producer.earlier);
        std::mem::swap(&mut candidates, &mut producer.candidates);
        self.acquire_free(producer, candidates.drain(..), peers);
        producer.earlier = candidates;
    }

    /// Adds the slots of items that consumers have taken to the candidates of a sole producer, so
    /// that it finds many free slots at a time. Other producers wait until the items are replaced,
    /// because all of them would find the same slots.
    fn note_taken(&self, producer: &mut Producer) {
        if !self.has_sole_producer() || self.shape.delivery() != Delivery::Queue {
            return;
        }
        let tail = self.head.tail.load(Ordering::Acquire);
        let oldest = tail.saturating_sub(u64::from(self.shape.depth()));
        let head = self.load_head().number().min(tail);
        for number in producer.examined.max(oldest)..head {
            let position = self.load_position(number);
            if position.distance(number) == 0 {
                self.add_candidate(producer, position.slot());
            }
            producer.examined = number + 1;
        }
    }

    fn add_candidate(&self, producer: &mut Producer, slot: u16) {
        if producer.candidates.len() < self.slots.len() {
            producer.candidates.push(slot);
        }
    }

    /// Returns a reserved slot without publishing it.
    pub fn cancel(&self, producer: &mut Producer, slot: u16) {
        if producer.reserved > 0 && slot < self.shape.slots() {
            producer.reserved -= 1;
            producer.spare.push(slot);
        }
    }

    /// Publishes the item in a reserved slot, and returns the item's number. If the channel is full
    /// and its producers wait, this call waits until the deadline.
    ///
    /// # Errors
    /// After an error the slot is still reserved. Returns [`ChannelError::TimedOut`] if the channel
    /// stayed full, and [`ChannelError::Corrupt`] if the words contradict each other.
    #[inline]
    pub fn publish(
        &self,
        producer: &mut Producer,
        slot: u16,
        peers: &dyn Peers,
        deadline: Option<P::Instant>,
    ) -> Result<u64, ChannelError> {
        self.publish_as(producer, slot, false, peers, deadline)
    }

    /// Publishes an item as [`publish`](Self::publish) does. If a queue may still write the item,
    /// its slot is not reused until [`Peers::is_written`] returns `true`.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    #[inline]
    pub fn publish_as(
        &self,
        producer: &mut Producer,
        slot: u16,
        is_unfinished: bool,
        peers: &dyn Peers,
        deadline: Option<P::Instant>,
    ) -> Result<u64, ChannelError> {
        let state = self
            .slots
            .get(usize::from(slot))
            .ok_or(ChannelError::Corrupt)?;
        if let Some(number) = producer.next {
            // The ring needs no check: it has this producer's latest item, and no later one.
            while self.wait_for_room(producer, number, peers, deadline)? {}
            let written = SlotState::idle(number).unfinished_if(is_unfinished);
            state.store(written.0, Ordering::Release);
            let word = self.position(number);
            let before = word.swap(Position::new(number, slot).0, Ordering::SeqCst);
            self.advance_tail(number);
            Self::wake(word, before);
            self.note_published(producer, slot, Position(before), number);
            return Ok(number);
        }
        let mut attempts = 0;
        loop {
            let number = self.head.tail.load(Ordering::Acquire);
            let before = self.load_position(number);
            if before.distance(number) == 0 {
                // Another producer has published the item, but not advanced the tail yet.
                Self::advance(&self.head.tail, number);
            } else if self.is_unpublished(before, number) {
                if self.wait_for_room(producer, number, peers, deadline)? {
                    continue;
                }
                let key = producer.key;
                let writing = match self.has_sole_producer() {
                    true => SlotState::idle(number),
                    false => SlotState::written_by(number, key.index, key.generation),
                }
                .unfinished_if(is_unfinished);
                state.store(writing.0, Ordering::Release);
                let after = Position::new(number, slot);
                let word = self.position(number);
                let swapped =
                    word.compare_exchange(before.0, after.0, Ordering::SeqCst, Ordering::Relaxed);
                if swapped.is_ok() {
                    self.advance_tail(number);
                    if !self.has_sole_producer() {
                        let idle = SlotState::idle(number).unfinished_if(is_unfinished);
                        state.store(idle.0, Ordering::Release);
                    }
                    Self::wake(word, before.0);
                    self.note_published(producer, slot, before, number);
                    return Ok(number);
                }
            }
            attempts += 1;
            if attempts == MAX_ATTEMPTS {
                return Err(ChannelError::Corrupt);
            }
        }
    }

    /// Records that the item in `slot` was published. The slot of the item that it has replaced,
    /// whose word was `before`, is free when no consumer holds it.
    fn note_published(&self, producer: &mut Producer, slot: u16, before: Position, number: u64) {
        producer.reserved = producer.reserved.saturating_sub(1);
        producer.disown(slot);
        if self.has_sole_producer() {
            producer.next = Some(number.wrapping_add(1));
        }
        // The first item in each word replaces no item.
        let replaced = number.checked_sub(u64::from(self.shape.depth()));
        if let Some(replaced) = replaced.filter(|replaced| *replaced >= producer.examined) {
            producer.examined = replaced + 1;
            self.add_candidate(producer, before.slot());
        }
    }

    /// Waits until the item that was published `depth` items before `number` may be replaced.
    /// Returns `true` if the caller has to look at the word again.
    fn wait_for_room(
        &self,
        producer: &mut Producer,
        number: u64,
        peers: &dyn Peers,
        deadline: Option<P::Instant>,
    ) -> Result<bool, ChannelError> {
        if self.shape.when_full() == WhenFull::DropOldest {
            return Ok(false);
        }
        let depth = u64::from(self.shape.depth());
        // The oldest item that stays after this one.
        let needed = number.saturating_sub(depth).wrapping_add(1);
        if number < depth || producer.passed >= needed {
            return Ok(false);
        }
        let wait = |producer: &mut Producer, word: &P::AtomicU64, seen: Cursor| {
            let is_changed = || word.load(Ordering::Acquire) >> 32 != seen.0 >> 32;
            let is_patient = producer.patience.spins();
            if is_patient {
                waiting::pause::<P>();
            }
            if !waiting::spin::<P>(is_patient, deadline, is_changed)? {
                let slept = self.sleep(word, seen.0, peers, deadline)?;
                producer.patience.note_sleep(slept);
            }
            Ok(true)
        };
        // No consumer advances beyond the tail.
        let mut passed = number;
        match self.shape.delivery() {
            Delivery::Queue => {
                let head = self.load_head();
                if head.number() < needed {
                    return wait(producer, &self.head.head, head);
                }
                passed = passed.min(head.number());
            }
            Delivery::Broadcast => {
                for member in self.consumers {
                    if !member.has_cursor() {
                        continue;
                    }
                    let cursor = Cursor(member.cursor.load(Ordering::SeqCst));
                    if cursor.number() < needed {
                        return wait(producer, &member.cursor, cursor);
                    }
                    passed = passed.min(cursor.number());
                }
            }
        }
        producer.passed = passed;
        Ok(false)
    }

    /// Finds free slots among `candidates` and makes the producer their owner. The others become
    /// candidates again.
    fn acquire_free(
        &self,
        producer: &mut Producer,
        candidates: impl IntoIterator<Item = u16>,
        peers: &dyn Peers,
    ) {
        let mut outside = std::mem::take(&mut producer.outside);
        let head = self.load_head().number();
        producer.unfinished = None;
        for slot in candidates {
            if slot >= self.shape.slots() || producer.owns(slot) {
                continue;
            }
            let state = self.load_slot(slot);
            let is_written = state
                .writer()
                .is_some_and(|writer| self.living_writer(writer).is_some());
            if is_written || self.is_in_ring(slot, state, head) {
                continue;
            }
            if state.is_unfinished() && !peers.is_written(slot) {
                producer.unfinished = Some(slot);
                self.add_candidate(producer, slot);
                continue;
            }
            outside.push((slot, state));
        }
        // The lists are read after the ring, so a slot that no list names stays free.
        self.read_held(producer, peers);
        let is_sole = self.has_sole_producer();
        let enough = match is_sole {
            true => self.slots.len(),
            // The channel has no more slots for this producer than it may reserve.
            false => usize::from(self.shape.reserved().saturating_sub(producer.reserved)),
        };
        for (slot, state) in outside.drain(..) {
            let is_held = producer.held[usize::from(slot / 64)] & bit(slot) != 0;
            if is_held || producer.spare.len() >= enough {
                self.add_candidate(producer, slot);
                continue;
            }
            // A slot may be twice among the candidates.
            if producer.owns(slot) {
                continue;
            }
            if is_sole {
                producer.add_spare(slot);
                continue;
            }
            let key = producer.key;
            let mine = SlotState::written_by(state.number(), key.index, key.generation);
            let taken = self.slots[usize::from(slot)].compare_exchange(
                state.0,
                mine.0,
                Ordering::SeqCst,
                Ordering::Relaxed,
            );
            if taken.is_ok() {
                producer.add_spare(slot);
            }
        }
        producer.outside = outside;
    }

    /// Reads which slots the living consumers hold.
    fn read_held(&self, producer: &mut Producer, peers: &dyn Peers) {
        producer.held.fill(0);
        let places = usize::from(self.shape.held());
        for (index, member) in self.consumers.iter().enumerate() {
            let Some(key) = member.key(index) else {
                continue;
            };
            for (held, free_after) in member.held.iter().zip(&member.free_after).take(places) {
                let held = held.load(Ordering::SeqCst);
                let Some(slot) = usize::try_from(held)
                    .ok()
                    .and_then(|held| held.checked_sub(1))
                else {
                    continue;
                };
                let number = free_after.load(Ordering::Acquire);
                if number != 0 && peers.is_complete(key, number) {
                    continue;
                }
                if let Some(word) = producer.held.get_mut(slot / 64) {
                    *word |= bit(slot as u16);
                }
            }
        }
    }
}
