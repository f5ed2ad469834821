//! Consumers: receiving items and releasing their slots.

use super::members::{MemberKey, Peers, Presence};
use super::shape::{Delivery, WhenFull};
use super::waiting::{self, MAX_ATTEMPTS, Patience};
use super::words::{Cursor, Position, in_slot};
use super::{Channel, ChannelError};
use crate::platform::{Atomic, Moment, Ordering, Platform};
use std::mem;

/// A consumer of a channel. It contains what only this consumer needs to know, and is useless with
/// another channel.
pub struct Consumer {
    key: MemberKey,
    /// Number of the next item of a broadcast.
    cursor: u64,
    /// Places in the consumer's list that are in use, one bit for each.
    used: u32,
    /// Those of them whose slots become free after a signal.
    deferred: u32,
    /// Number of items of a broadcast that were replaced before this consumer received them.
    lost: u64,
    /// Whether the latest attempt found an item.
    has_found: bool,
    /// Words of the ring that the consumer has read in advance.
    ahead: Ahead,
    patience: Patience,
}

/// Number of words of the ring in a cache line.
const LINE_WORDS: u64 = 8;

/// Words of a line of the ring, which a consumer reads at once. Each later read of the line may
/// have to take it from the producer.
struct Ahead {
    /// Number of the first item.
    first: u64,
    len: u8,
    positions: [Position; LINE_WORDS as usize],
}

impl Ahead {
    const NONE: Self = Self {
        first: 0,
        len: 0,
        positions: [Position::new(0, 0); LINE_WORDS as usize],
    };

    #[inline]
    fn get(&self, number: u64) -> Option<Position> {
        let index = number.wrapping_sub(self.first);
        (index < u64::from(self.len)).then(|| self.positions[index as usize])
    }
}

/// A received item. The consumer holds its slot until it releases the item.
#[derive(Debug)]
#[must_use]
pub struct Item {
    slot: u16,
    number: u64,
    place: u8,
}

/// The result of an attempt to receive an item.
#[derive(Debug)]
pub enum Received {
    Item(Item),
    /// No item is waiting.
    Empty,
}

impl Consumer {
    /// Returns the member that this consumer is.
    pub fn key(&self) -> MemberKey {
        self.key
    }

    /// Returns the number of items of a broadcast that were replaced before this consumer received
    /// them.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns whether slots of this consumer become free after signals.
    pub fn has_deferred(&self) -> bool {
        self.deferred != 0
    }

    /// Returns the places of the consumer's list that are in use, one bit for each.
    #[inline]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Makes places of the consumer's list available again after [`Channel::free`], one bit for
    /// each.
    #[inline]
    pub fn reuse(&mut self, places: u32) {
        self.used &= !places;
    }

    /// Records that slots become free after signals, one bit for each place. See
    /// [`Channel::free_after`].
    pub fn defer(&mut self, places: u32) {
        self.deferred |= places & self.used;
    }
}

impl Item {
    /// Returns the index of the slot that contains the item.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// Returns the item's number. The first item of a channel has the number 0.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl<P: Platform> Channel<'_, P> {
    /// Adds a consumer whose process has the number `owner`. A consumer of a broadcast receives
    /// items that are published from now on.
    ///
    /// # Errors
    /// Returns [`ChannelError::NoPlace`] if the channel has its maximum number of living consumers.
    pub fn join_consumer(&self, owner: u16, peers: &dyn Peers) -> Result<Consumer, ChannelError> {
        let key = Self::join(self.consumers, owner, peers)?;
        let member = &self.consumers[usize::from(key.index)];
        // Until here the list of the previous member keeps its slots from being reused.
        for (held, free_after) in member.held.iter().zip(&member.free_after) {
            held.store(0, Ordering::SeqCst);
            free_after.store(0, Ordering::SeqCst);
        }
        let mut consumer = Consumer {
            key,
            cursor: 0,
            used: 0,
            deferred: 0,
            lost: 0,
            has_found: false,
            ahead: Ahead::NONE,
            patience: Patience::default(),
        };
        // Producers respect the cursor from `set_alive` on. Those that did not see it then have
        // advanced no further than `published` says afterwards.
        self.move_cursor(&mut consumer, self.published());
        member.set_alive(key);
        self.move_cursor(&mut consumer, self.published());
        Ok(consumer)
    }

    /// Receives the next item if one is waiting.
    ///
    /// # Errors
    /// Returns [`ChannelError::TooManyHeld`] if the consumer holds its maximum number of slots, and
    /// [`ChannelError::Corrupt`] if the words contradict each other.
    pub fn try_receive(&self, consumer: &mut Consumer) -> Result<Received, ChannelError> {
        let place = consumer.used.trailing_ones() as u8;
        if place >= self.shape.held() {
            return Err(ChannelError::TooManyHeld);
        }
        for _ in 0..MAX_ATTEMPTS {
            match self.attempt(consumer, place) {
                Attempt::Retry => {}
                // The next item may be on its way. Another poll would take the cache line from the
                // producer, which would slow down all items.
                Attempt::Empty if mem::take(&mut consumer.has_found) => waiting::pause::<P>(),
                Attempt::Empty => return Ok(Received::Empty),
                Attempt::Item(item) => {
                    consumer.has_found = true;
                    consumer.used |= 1 << place;
                    return Ok(Received::Item(item));
                }
            }
        }
        Err(ChannelError::Corrupt)
    }

    /// Returns whether an item is waiting. Another consumer of a queue may take it at once.
    pub fn has_item(&self, consumer: &Consumer) -> bool {
        let number = self.next_number(consumer);
        !self.is_unpublished(self.load_position(number), number)
    }

    fn next_number(&self, consumer: &Consumer) -> u64 {
        match self.shape.delivery() {
            Delivery::Queue => self.load_head().number(),
            Delivery::Broadcast => consumer.cursor,
        }
    }

    /// Receives the next item, and waits for it until the deadline.
    ///
    /// # Errors
    /// In addition to the errors of [`try_receive`](Self::try_receive), returns
    /// [`ChannelError::TimedOut`] if no item came, and [`ChannelError::NoProducer`] if no item is
    /// left and all producers have left or died.
    pub fn receive(
        &self,
        consumer: &mut Consumer,
        peers: &dyn Peers,
        deadline: Option<P::Instant>,
    ) -> Result<Item, ChannelError> {
        loop {
            // Usually an item is waiting, or the spinning has found one.
            if let Received::Item(item) = self.try_receive(consumer)? {
                return Ok(item);
            }
            let number = self.next_number(consumer);
            // A departure changes the word after the list of producers, so one of the two shows it.
            // A producer may publish an item before it leaves, so the attempt comes last.
            let seen = self.load_position(number);
            let producers = self.producers();
            if let Received::Item(item) = self.try_receive(consumer)? {
                return Ok(item);
            }
            if let Presence::Gone { died } = producers
                && !self.shape.does_await_producers()
            {
                return Err(ChannelError::NoProducer { died });
            }
            if !self.is_unpublished(seen, number) {
                // Another consumer has taken the item. A hostile member can pretend that for ever.
                if deadline.is_some_and(|deadline| deadline <= P::Instant::now()) {
                    return Err(ChannelError::TimedOut);
                }
                if peers.is_interrupted() {
                    return Err(ChannelError::Interrupted);
                }
                continue;
            }
            let word = self.position(number);
            let is_changed = || word.load(Ordering::Acquire) >> 32 != seen.0 >> 32;
            let is_patient = consumer.patience.spins();
            if !waiting::spin::<P>(is_patient, deadline, is_changed)? {
                if self.skip_replaced(consumer) {
                    continue;
                }
                let slept = self.sleep(word, seen.0, peers, deadline)?;
                consumer.patience.note_sleep(slept);
            }
        }
    }

    /// Releases an item's slot.
    pub fn release(&self, consumer: &mut Consumer, item: Item) {
        let place = self.free(consumer.key, item);
        consumer.reuse(place);
    }

    /// Releases an item's slot when the consumer's signal `number` completes. Until then the slot
    /// is one of those that the consumer holds. `number` is not 0.
    pub fn release_after(&self, consumer: &mut Consumer, item: Item, number: u64) {
        let place = self.free_after(consumer.key, item, number);
        consumer.defer(place);
    }

    /// Frees an item's slot. Any thread of the consumer's process may do so. Returns the bit for
    /// [`Consumer::reuse`].
    pub fn free(&self, consumer: MemberKey, item: Item) -> u32 {
        self.unhold(consumer, item.place);
        1 << item.place
    }

    /// Frees an item's slot when the consumer's signal `number` completes. Any thread of the
    /// consumer's process may do so. Returns the bit for [`Consumer::defer`].
    pub fn free_after(&self, consumer: MemberKey, item: Item, number: u64) -> u32 {
        let member = &self.consumers[usize::from(consumer.index)];
        member.free_after[usize::from(item.place)].store(number, Ordering::Release);
        1 << item.place
    }

    /// Returns whether the consumer holds its maximum number of slots.
    pub fn is_full(&self, consumer: &Consumer) -> bool {
        consumer.used.trailing_ones() >= u32::from(self.shape.held())
    }

    /// Returns the numbers of the signals after which slots of this consumer become free.
    pub fn releases(&self, consumer: &Consumer) -> impl Iterator<Item = u64> {
        let member = &self.consumers[usize::from(consumer.key.index)];
        let deferred = consumer.deferred;
        let places = (0..).zip(&member.free_after);
        let places = places.filter(move |(place, _)| deferred >> place & 1 != 0);
        places.map(|(_, free_after)| free_after.load(Ordering::Relaxed))
    }

    /// Moves a consumer to the oldest item if the next one was replaced. Returns whether it was.
    /// The words of the ring do not show this if 2²³ items, less the depth, were published since.
    pub fn skip_replaced(&self, consumer: &mut Consumer) -> bool {
        let number = self.next_number(consumer);
        let Some(oldest) = self.oldest_after(number) else {
            return false;
        };
        self.skip_to(consumer, number, oldest);
        true
    }

    fn skip_to(&self, consumer: &mut Consumer, number: u64, oldest: u64) {
        match self.shape.delivery() {
            Delivery::Queue => {
                let seen = self.load_head();
                if seen.number() == number {
                    self.advance_head(seen, oldest);
                }
            }
            Delivery::Broadcast => {
                consumer.lost = consumer.lost.saturating_add(oldest.wrapping_sub(number));
                self.move_cursor(consumer, oldest);
            }
        }
    }

    /// Advances the head of a queue, which had the value `seen`. Returns whether it did.
    fn advance_head(&self, seen: Cursor, to: u64) -> bool {
        let (from, to) = (seen.0, Cursor::new(to).0);
        (self.head.head)
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }

    /// Releases the slots whose signals are complete.
    pub fn release_complete(&self, consumer: &mut Consumer, peers: &dyn Peers) {
        let member = &self.consumers[usize::from(consumer.key.index)];
        let mut deferred = consumer.deferred;
        while deferred != 0 {
            let place = deferred.trailing_zeros();
            deferred &= deferred - 1;
            let free_after = &member.free_after[place as usize];
            let number = free_after.load(Ordering::Relaxed);
            if peers.is_complete(consumer.key, number) {
                // A producer reads the slot first. If it reads a later slot of this place, it
                // therefore does not read the earlier slot's number.
                free_after.store(0, Ordering::Release);
                self.unhold(consumer.key, place as u8);
                consumer.used &= !(1 << place);
                consumer.deferred &= !(1 << place);
            }
        }
    }

    /// Tries to receive the next item.
    fn attempt(&self, consumer: &mut Consumer, place: u8) -> Attempt {
        let head = match self.shape.delivery() {
            Delivery::Queue => Some(self.load_head()),
            Delivery::Broadcast => None,
        };
        let number = head.map_or(consumer.cursor, Cursor::number);
        let before = self.read_ring(consumer, number);
        match self.find(before, number) {
            Found::Nothing => Attempt::Empty,
            Found::Unknown => Attempt::Retry,
            Found::Replaced { oldest } => {
                self.skip_to(consumer, number, oldest);
                Attempt::Retry
            }
            Found::Item => {
                self.hold(consumer, place, before);
                let next = number.wrapping_add(1);
                let is_received = self.is_protected(before, number)
                    && head.is_none_or(|seen| self.advance_head(seen, next));
                if !is_received {
                    self.unhold(consumer.key, place);
                    return Attempt::Retry;
                }
                match head {
                    Some(seen) => Self::wake(&self.head.head, seen.0),
                    None => self.move_cursor(consumer, next),
                }
                self.item(consumer, before, number, place)
            }
        }
    }

    /// Returns the word of item `number`, which is the next one.
    #[inline]
    fn read_ring(&self, consumer: &mut Consumer, number: u64) -> Position {
        if let Some(position) = consumer.ahead.get(number) {
            return position;
        }
        let position = self.load_position(number);
        // If producers wait, published items stay in the ring until they are received.
        if self.waits() && position.distance(number) == 0 {
            let ahead = &mut consumer.ahead;
            (ahead.first, ahead.len) = (number, 0);
            let in_line = LINE_WORDS - number % LINE_WORDS;
            for later in number..number.saturating_add(in_line) {
                let position = self.load_position(later);
                if position.distance(later) != 0 {
                    break;
                }
                ahead.positions[usize::from(ahead.len)] = position;
                ahead.len += 1;
            }
        }
        position
    }

    /// Returns what item `number`'s word in the ring, which had the value `word`, says about it.
    fn find(&self, word: Position, number: u64) -> Found {
        // Producers write the ring in order, so no later item exists. Polls read only this word.
        if self.is_unpublished(word, number) {
            return Found::Nothing;
        }
        // The word has only the lower bits of the number. The slot has more of them. They differ if
        // the caller has missed millions of items, which a producer that waits rules out.
        if word.distance(number) == 0 && (self.waits() || self.is_in_slot(word.slot(), number)) {
            return Found::Item;
        }
        match self.oldest_after(number) {
            Some(oldest) => Found::Replaced { oldest },
            None => Found::Unknown,
        }
    }

    /// Returns whether producers wait until consumers have received the oldest item.
    fn waits(&self) -> bool {
        self.shape.when_full() == WhenFull::Wait
    }

    /// Returns whether the slot of item `number`, which the consumer has recorded in its list, is
    /// protected by that. Otherwise the item was replaced before.
    fn is_protected(&self, position: Position, number: u64) -> bool {
        self.waits() || self.load_position(number).is_same_item(position)
    }

    /// Returns the number of the oldest item in the ring if item `number` was replaced. Returns
    /// `None` if that item was not published yet.
    fn oldest_after(&self, number: u64) -> Option<u64> {
        let depth = u64::from(self.shape.depth());
        let oldest = self.published().saturating_sub(depth);
        (oldest > number).then_some(oldest)
    }

    /// Returns the received item, whose slot the consumer holds.
    fn item(&self, consumer: &Consumer, position: Position, number: u64, place: u8) -> Attempt {
        let slot = position.slot();
        // A hostile member can name a slot that does not exist. Such an item is skipped.
        if slot >= self.shape.slots() {
            self.unhold(consumer.key, place);
            return Attempt::Retry;
        }
        Attempt::Item(Item {
            slot,
            number,
            place,
        })
    }

    /// Returns whether the slot exists and its latest item has this number.
    fn is_in_slot(&self, slot: u16, number: u64) -> bool {
        slot < self.shape.slots() && self.load_slot(slot).number() == in_slot(number)
    }

    fn hold(&self, consumer: &Consumer, place: u8, position: Position) {
        let member = &self.consumers[usize::from(consumer.key.index)];
        let held = u64::from(position.slot()) + 1;
        let order = match self.waits() {
            // The consumer advances its counter afterwards, which a producer reads first.
            true => Ordering::Release,
            // The consumer reads the ring afterwards.
            false => Ordering::SeqCst,
        };
        member.held[usize::from(place)].store(held, order);
    }

    fn unhold(&self, consumer: MemberKey, place: u8) {
        let member = &self.consumers[usize::from(consumer.index)];
        member.held[usize::from(place)].store(0, Ordering::Release);
    }

    /// Moves the cursor, and wakes producers that wait for this consumer.
    fn move_cursor(&self, consumer: &mut Consumer, number: u64) {
        consumer.cursor = number;
        let word = &self.consumers[usize::from(consumer.key.index)].cursor;
        let mut before = word.load(Ordering::Relaxed);
        for _ in 0..MAX_ATTEMPTS {
            // The same number would clear the bit of a member that is about to sleep, and which
            // would then sleep, because the upper half has not changed.
            if Cursor(before).number() == number {
                return;
            }
            match word.compare_exchange(
                before,
                Cursor::new(number).0,
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Self::wake(word, before),
                Err(now) => before = now,
            }
        }
    }
}

/// What a word of the ring says about an item.
enum Found {
    /// The item is in the word.
    Item,
    /// The item was not published yet.
    Nothing,
    /// Later items have replaced the item. `oldest` is the oldest one in the ring.
    Replaced { oldest: u64 },
    /// Other members are changing the words, or they contradict each other.
    Unknown,
}

/// The result of one attempt to receive an item.
enum Attempt {
    Item(Item),
    Empty,
    /// Another member changed the words in the meantime.
    Retry,
}
