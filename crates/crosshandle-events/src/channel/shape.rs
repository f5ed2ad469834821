//! The fixed properties of a channel.

/// Maximum number of producers, and of consumers.
pub const MAX_MEMBERS: u8 = 64;
/// Maximum number of slots that a member may hold at the same time.
pub const MAX_HELD: u8 = 15;

/// The consumers that receive an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// Each item goes to one consumer.
    Queue,
    /// Each item goes to every consumer that has joined before it was published.
    Broadcast,
}

/// What a producer does if the channel is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenFull {
    /// The producer waits until a consumer has received the oldest item.
    Wait,
    /// The producer replaces the oldest item. A channel of depth 1 keeps the latest item.
    DropOldest,
}

/// The fixed properties of a channel. Each process keeps a copy, because a hostile member can
/// change those in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    delivery: Delivery,
    when_full: WhenFull,
    depth: u32,
    producers: u8,
    consumers: u8,
    reserved: u8,
    held: u8,
    awaits_producers: bool,
}

impl Shape {
    /// Returns a shape for `depth` items that wait to be received.
    ///
    /// Each of `producers` may have `reserved` slots at the same time, and each of `consumers` may
    /// hold `held` slots. Returns `None` if the depth is not a power of two, a number is zero or
    /// above its maximum, or the channel would need more than 65,535 slots.
    pub fn new(
        delivery: Delivery,
        when_full: WhenFull,
        depth: u32,
        producers: (u8, u8),
        consumers: (u8, u8),
    ) -> Option<Self> {
        let (producers, reserved) = producers;
        let (consumers, held) = consumers;
        let members = 1..=MAX_MEMBERS;
        let each = 1..=MAX_HELD;
        let valid = depth.is_power_of_two()
            && members.contains(&producers)
            && members.contains(&consumers)
            && each.contains(&reserved)
            && each.contains(&held);
        let shape = Self {
            delivery,
            when_full,
            depth,
            producers,
            consumers,
            reserved,
            held,
            awaits_producers: false,
        };
        (valid && u16::try_from(shape.needed_slots()).is_ok()).then_some(shape)
    }

    /// Sets whether consumers wait for the next producer after all producers have left or died.
    pub fn awaits_producers(mut self, awaits: bool) -> Self {
        self.awaits_producers = awaits;
        self
    }

    /// Returns whether consumers wait for the next producer after all producers have left or died.
    pub fn does_await_producers(&self) -> bool {
        self.awaits_producers
    }

    pub fn delivery(&self) -> Delivery {
        self.delivery
    }

    pub fn when_full(&self) -> WhenFull {
        self.when_full
    }

    /// Returns the maximum number of items that wait to be received.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns the maximum number of producers.
    pub fn producers(&self) -> u8 {
        self.producers
    }

    /// Returns the maximum number of consumers.
    pub fn consumers(&self) -> u8 {
        self.consumers
    }

    /// Returns the maximum number of slots that a producer has reserved.
    pub fn reserved(&self) -> u8 {
        self.reserved
    }

    /// Returns the maximum number of slots that a consumer holds.
    pub fn held(&self) -> u8 {
        self.held
    }

    /// Returns the number of slots. So many exist that a producer always finds a free one.
    pub fn slots(&self) -> u16 {
        self.needed_slots() as u16
    }

    fn needed_slots(&self) -> u64 {
        let reserved = u64::from(self.producers) * u64::from(self.reserved);
        let held = u64::from(self.consumers) * u64::from(self.held);
        u64::from(self.depth) + reserved + held
    }
}
