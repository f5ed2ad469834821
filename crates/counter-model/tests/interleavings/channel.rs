//! Channels: items reach consumers once and in order, slots are not reused while a member uses
//! them, and members may die at any step.

use crate::check::check;
use crate::platform::{self, AtomicU64, Instant, Shuttle, live_for, one_in, pick};
use crosshandle_events::channel::{
    Channel, ChannelError, Delivery, Head, Item, Member, Peers, Presence, Received, Shape, WhenFull,
};
use crosshandle_events::platform::Moment;
use shuttle::thread::{JoinHandle, spawn, yield_now};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64 as Plain, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Number that stands for a slot's item while a producer writes it.
const WRITING: u64 = u64::MAX;

/// The shared memory of a channel, and a record of what really happened.
struct World {
    shape: Shape,
    head: Head<Shuttle>,
    ring: Vec<AtomicU64>,
    slots: Vec<AtomicU64>,
    producers: Vec<Member<Shuttle>>,
    consumers: Vec<Member<Shuttle>>,
    /// The item in each slot.
    contents: Vec<Plain>,
    /// For each owner: whether its process has ended.
    dead: [AtomicBool; 16],
    /// Values of the items that the calls of `publish` have returned, by number.
    published: Mutex<BTreeMap<u64, u64>>,
    /// Numbers and values of the items that consumers received, for each owner.
    received: Mutex<BTreeMap<u16, Vec<(u64, u64)>>>,
    /// Number of killed consumers. Each may have taken an item that it did not record.
    killed_consumers: AtomicU32,
    /// Number of producers that have not ended.
    running_producers: AtomicU32,
}

impl Peers for World {
    fn is_dead(&self, owner: u16) -> bool {
        self.dead[usize::from(owner)].load(Ordering::Relaxed)
    }
}

impl World {
    fn new(shape: Shape) -> Arc<Self> {
        let words = |number: usize| (0..number).map(|_| AtomicU64::new(0)).collect();
        let members = |number: u8| (0..number).map(|_| Member::default()).collect();
        let slots = usize::from(shape.slots());
        let world = Self {
            shape,
            head: Head::default(),
            ring: words(shape.depth() as usize),
            slots: words(slots),
            producers: members(shape.producers()),
            consumers: members(shape.consumers()),
            contents: (0..slots).map(|_| Plain::new(0)).collect(),
            dead: Default::default(),
            published: Mutex::default(),
            received: Mutex::default(),
            killed_consumers: AtomicU32::new(0),
            running_producers: AtomicU32::new(0),
        };
        world.channel().initialise();
        Arc::new(world)
    }

    fn channel(&self) -> Channel<'_, Shuttle> {
        Channel::new(
            self.shape,
            &self.head,
            &self.ring,
            &self.slots,
            &self.producers,
            &self.consumers,
        )
        .expect("the numbers of words match the shape")
    }

    /// Publishes `items` items. Their values are unique.
    fn produce(&self, owner: u16, items: u64) {
        let channel = self.channel();
        let Ok(mut producer) = channel.join_producer(owner, self) else {
            return;
        };
        producer.prefer_recent(one_in(2));
        for item in 0..items {
            let value = u64::from(owner) << 32 | item;
            let slot = channel.reserve(&mut producer, self).expect("a free slot");
            let content = &self.contents[usize::from(slot)];
            // A producer that was killed leaves this mark.
            content.store(WRITING, Ordering::Relaxed);
            yield_now();
            assert_eq!(content.load(Ordering::Relaxed), WRITING, "two producers");
            content.store(value, Ordering::Relaxed);
            if one_in(8) {
                channel.cancel(&mut producer, slot);
                continue;
            }
            let number = channel.publish(&mut producer, slot, self, None).unwrap();
            let before = self.published.lock().unwrap().insert(number, value);
            assert_eq!(before, None, "two items with number {number}");
        }
        channel.remove_producer(producer.key());
    }

    /// Receives items until `until` says stop or no producer is left.
    fn consume(&self, owner: u16, most: usize) {
        let channel = self.channel();
        let Ok(mut consumer) = channel.join_consumer(owner, self) else {
            return;
        };
        let mut held: Vec<(Item, u64)> = Vec::new();
        for _ in 0..most {
            if held.len() >= usize::from(self.shape.held()) || !held.is_empty() && one_in(2) {
                let (item, value) = held.swap_remove(pick(held.len() as u64) as usize);
                self.verify(&item, value);
                channel.release(&mut consumer, item);
                continue;
            }
            match channel.receive(&mut consumer, self, None) {
                Ok(item) => {
                    let value = self.contents[usize::from(item.slot())].load(Ordering::Relaxed);
                    let mut received = self.received.lock().unwrap();
                    let all = received.entry(owner).or_default();
                    all.push((item.number(), value));
                    held.push((item, value));
                }
                // A producer of the scenario may not have joined yet.
                Err(ChannelError::NoProducer { .. })
                    if self.running_producers.load(Ordering::Relaxed) > 0 =>
                {
                    yield_now();
                }
                Err(ChannelError::NoProducer { .. }) => break,
                Err(error) => panic!("{error:?}"),
            }
        }
        for (item, value) in held {
            yield_now();
            self.verify(&item, value);
            channel.release(&mut consumer, item);
        }
        if self.shape.when_full() == WhenFull::Wait {
            assert_eq!(consumer.lost(), 0, "items were replaced");
        }
        channel.remove_consumer(consumer.key());
    }

    /// Checks that a held slot has not been reused.
    fn verify(&self, item: &Item, value: u64) {
        let now = self.contents[usize::from(item.slot())].load(Ordering::Relaxed);
        assert_eq!(now, value, "item {} changed while held", item.number());
    }

    /// Runs a member that may be killed after a number of steps.
    fn start(
        self: &Arc<Self>,
        owner: u16,
        steps: Option<u32>,
        life: impl FnOnce(&Self) + Send + 'static,
    ) -> JoinHandle<()> {
        let world = self.clone();
        spawn(move || {
            // A process that is not killed lives longer than any scenario.
            let steps = steps.unwrap_or(u32::MAX);
            if live_for(steps, || life(&world)).is_none() {
                world.dead[usize::from(owner)].store(true, Ordering::Relaxed);
            }
        })
    }

    fn produces(self: &Arc<Self>, owner: u16, steps: Option<u32>, items: u64) -> JoinHandle<()> {
        self.running_producers.fetch_add(1, Ordering::Relaxed);
        let world = self.clone();
        let producer = self.start(owner, steps, move |world| world.produce(owner, items));
        spawn(move || {
            producer.join().unwrap();
            world.running_producers.fetch_sub(1, Ordering::Relaxed);
        })
    }

    fn consumes(self: &Arc<Self>, owner: u16, steps: Option<u32>, most: usize) -> JoinHandle<()> {
        if steps.is_some() {
            self.killed_consumers.fetch_add(1, Ordering::Relaxed);
        }
        self.start(owner, steps, move |world| world.consume(owner, most))
    }

    /// Waits for the members, and receives what is left.
    fn finish(self: &Arc<Self>, members: impl IntoIterator<Item = JoinHandle<()>>) {
        for member in members {
            member.join().unwrap();
        }
        let channel = self.channel();
        channel.remove_dead(&**self);
        assert_ne!(channel.producers(), Presence::Alive);
        assert_ne!(channel.consumers(), Presence::Alive);
        if self.shape.delivery() == Delivery::Queue {
            self.consume(15, 1000);
        }
        self.check_received();
        self.check_slots();
    }

    /// Checks that consumers received what producers published, once and in order.
    fn check_received(&self) {
        let published = self.published.lock().unwrap();
        let received = self.received.lock().unwrap();
        let mut all = BTreeMap::new();
        for items in received.values() {
            assert!(items.is_sorted_by_key(|(number, _)| *number), "{items:?}");
            for (number, value) in items {
                if let Some(expected) = published.get(number) {
                    assert_eq!(value, expected, "item {number} has another item's value");
                }
                let earlier = all.insert(*number, *value);
                match self.shape.delivery() {
                    Delivery::Queue => assert_eq!(earlier, None, "{number} delivered twice"),
                    Delivery::Broadcast => assert!(earlier.is_none_or(|earlier| earlier == *value)),
                }
            }
        }
        if self.shape.when_full() == WhenFull::Wait && self.shape.delivery() == Delivery::Queue {
            let missing = self.channel().published() - all.len() as u64;
            let excused = self.killed_consumers.load(Ordering::Relaxed);
            assert!(missing <= excused.into(), "{missing} items were lost");
        }
    }

    /// Checks that every slot that is not in the ring is free again.
    fn check_slots(self: &Arc<Self>) {
        let channel = self.channel();
        let mut producer = channel.join_producer(14, &**self).unwrap();
        producer.prefer_recent(one_in(2));
        let mut consumer = channel.join_consumer(14, &**self).unwrap();
        for _ in 0..2 * self.shape.slots() {
            let slot = channel
                .reserve(&mut producer, &**self)
                .expect("a free slot");
            channel.publish(&mut producer, slot, &**self, None).unwrap();
            let Ok(Received::Item(item)) = channel.try_receive(&mut consumer) else {
                panic!("the published item did not arrive");
            };
            channel.release(&mut consumer, item);
        }
    }
}

/// Runs a scenario of one thread, whose random choices differ from run to run.
fn alone(runs: usize, scenario: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(scenario, runs);
}

fn shape(
    delivery: Delivery,
    when_full: WhenFull,
    depth: u32,
    producers: (u8, u8),
    consumers: (u8, u8),
) -> Shape {
    Shape::new(delivery, when_full, depth, producers, consumers).expect("a valid shape")
}

/// Without deaths no sleep times out, so a lost wake-up is a deadlock.
#[test]
fn a_queue_delivers_each_item_once() {
    check(150, || {
        let depth = 1 << pick(2);
        let world = World::new(shape(
            Delivery::Queue,
            WhenFull::Wait,
            depth,
            (2, 1),
            (2, 2),
        ));
        let first = [world.produces(1, None, 3), world.produces(2, None, 3)];
        let consumers = [world.consumes(3, None, 100), world.consumes(4, None, 100)];
        world.finish(first.into_iter().chain(consumers));
    });
}

#[test]
fn a_broadcast_delivers_each_item_to_every_consumer() {
    check(150, || {
        let depth = 1 << pick(2);
        let world = World::new(shape(
            Delivery::Broadcast,
            WhenFull::Wait,
            depth,
            (2, 1),
            (2, 2),
        ));
        let members = [
            world.consumes(3, None, 100),
            world.consumes(4, None, 100),
            world.produces(1, None, 3),
            world.produces(2, None, 3),
        ];
        world.finish(members);
    });
}

#[test]
fn the_oldest_items_are_dropped() {
    check(150, || {
        let delivery = match one_in(2) {
            true => Delivery::Queue,
            false => Delivery::Broadcast,
        };
        let depth = 1 << pick(2);
        let world = World::new(shape(delivery, WhenFull::DropOldest, depth, (2, 2), (2, 2)));
        let members = [
            world.consumes(3, None, 100),
            world.consumes(4, None, 5),
            world.produces(1, None, 4),
            world.produces(2, None, 4),
        ];
        world.finish(members);
    });
}

/// Producers and consumers die at any step, and others take their places.
#[test]
fn members_die_at_every_step() {
    check(400, || {
        platform::allow_timeouts();
        let delivery = match one_in(2) {
            true => Delivery::Queue,
            false => Delivery::Broadcast,
        };
        let when_full = match one_in(2) {
            true => WhenFull::Wait,
            false => WhenFull::DropOldest,
        };
        let depth = 1 << pick(2);
        let world = World::new(shape(delivery, when_full, depth, (2, 1), (2, 2)));
        // A consumer that survives empties the queue, so that producers can end.
        let members = [
            world.consumes(3, None, 1000),
            world.consumes(4, Some(pick(80) as u32), 1000),
            world.produces(1, Some(pick(80) as u32), 4),
            world.produces(2, None, 3),
            world.produces(5, None, 2),
        ];
        world.finish(members);
    });
}

/// The only producer of a channel dies, and another one takes its place. Consumers die too.
#[test]
fn a_sole_producer_has_successors() {
    check(300, || {
        platform::allow_timeouts();
        let delivery = match one_in(3) {
            true => Delivery::Broadcast,
            false => Delivery::Queue,
        };
        let when_full = match one_in(2) {
            true => WhenFull::Wait,
            false => WhenFull::DropOldest,
        };
        let depth = 1 << pick(3);
        let world = World::new(shape(delivery, when_full, depth, (1, 2), (2, 2)));
        let consumers = [
            world.consumes(3, None, 1000),
            world.consumes(4, Some(pick(80) as u32), 1000),
        ];
        let lives = [Some(pick(100) as u32), Some(pick(100) as u32), None];
        let producers = world.clone();
        // Consumers that find no producer in between wait for the next one.
        world.running_producers.fetch_add(1, Ordering::Relaxed);
        let producers = spawn(move || {
            for (owner, steps) in [1, 2, 5].into_iter().zip(lives) {
                producers.produces(owner, steps, 4).join().unwrap();
            }
            producers.running_producers.fetch_sub(1, Ordering::Relaxed);
        });
        world.finish(consumers.into_iter().chain([producers]));
    });
}

/// The only consumer of a queue dies, and another one takes its place. The producer dies too.
#[test]
fn a_sole_consumer_has_successors() {
    check(300, || {
        platform::allow_timeouts();
        let depth = 1 << pick(4);
        let places = (1, 2);
        let world = World::new(shape(
            Delivery::Queue,
            WhenFull::Wait,
            depth,
            places,
            places,
        ));
        let lives = [Some(pick(100) as u32), Some(pick(100) as u32), None];
        let consumers = world.clone();
        let consumers = spawn(move || {
            for (owner, steps) in [3, 4, 6].into_iter().zip(lives) {
                consumers.consumes(owner, steps, 1000).join().unwrap();
            }
        });
        let producers = world.clone();
        // Consumers that find no producer in between wait for the next one.
        world.running_producers.fetch_add(1, Ordering::Relaxed);
        let producers = spawn(move || {
            for (owner, steps) in [(1, Some(pick(200) as u32)), (2, None)] {
                producers.produces(owner, steps, 9).join().unwrap();
            }
            producers.running_producers.fetch_sub(1, Ordering::Relaxed);
        });
        world.finish([consumers, producers]);
    });
}

/// Without deaths, a sole producer and its consumers never lose a wake-up.
#[test]
fn a_sole_producer_fills_the_queue() {
    check(200, || {
        let depth = 1 << pick(3);
        let consumers = 1 + pick(2) as u8;
        let world = World::new(shape(
            Delivery::Queue,
            WhenFull::Wait,
            depth,
            (1, 2),
            (consumers, 1),
        ));
        let producer = world.produces(1, None, 8);
        let consumers = (0..consumers).map(|index| world.consumes(3 + u16::from(index), None, 100));
        let members: Vec<_> = consumers.collect();
        world.finish(members.into_iter().chain([producer]));
    });
}

/// A wait for room, and a wait for an item, end at their deadlines.
#[test]
fn waits_end_at_their_deadlines() {
    alone(200, || {
        platform::allow_timeouts();
        let world = World::new(shape(Delivery::Queue, WhenFull::Wait, 1, (1, 2), (1, 1)));
        let channel = world.channel();
        let deadline = || Some(Instant::now() + Duration::from_millis(100));
        let mut producer = channel.join_producer(1, &*world).unwrap();
        let mut consumer = channel.join_consumer(2, &*world).unwrap();
        let empty = channel.receive(&mut consumer, &*world, deadline());
        assert_eq!(empty.unwrap_err(), ChannelError::TimedOut);
        let slot = channel.reserve(&mut producer, &*world).unwrap();
        channel
            .publish(&mut producer, slot, &*world, deadline())
            .unwrap();
        let slot = channel.reserve(&mut producer, &*world).unwrap();
        let full = channel.publish(&mut producer, slot, &*world, deadline());
        assert_eq!(full, Err(ChannelError::TimedOut));
        let item = channel.receive(&mut consumer, &*world, deadline()).unwrap();
        assert_eq!(item.number(), 0);
        channel
            .publish(&mut producer, slot, &*world, deadline())
            .unwrap();
        let refused = channel.try_receive(&mut consumer);
        assert_eq!(refused.unwrap_err(), ChannelError::TooManyHeld);
    });
}

/// A slot whose release depends on a signal is not reused before the signal.
#[test]
fn a_deferred_release_waits_for_its_signal() {
    struct Signals(AtomicBool);
    impl Peers for Signals {
        fn is_dead(&self, _: u16) -> bool {
            false
        }
        fn is_complete(&self, _: crosshandle_events::channel::MemberKey, number: u64) -> bool {
            assert_eq!(number, 7);
            self.0.load(Ordering::Relaxed)
        }
    }
    alone(100, || {
        let world = World::new(shape(Delivery::Queue, WhenFull::Wait, 1, (1, 1), (1, 2)));
        let channel = world.channel();
        let signals = Signals(AtomicBool::new(false));
        let mut producer = channel.join_producer(1, &signals).unwrap();
        let mut consumer = channel.join_consumer(2, &signals).unwrap();
        let mut pass = |consumer: &mut _| {
            let slot = channel.reserve(&mut producer, &signals).unwrap();
            channel
                .publish(&mut producer, slot, &signals, None)
                .unwrap();
            channel.receive(consumer, &signals, None).unwrap()
        };
        let item = pass(&mut consumer);
        let deferred = item.slot();
        channel.release_after(&mut consumer, item, 7);
        for _ in 0..8 {
            let item = pass(&mut consumer);
            assert_ne!(item.slot(), deferred, "reused before the signal");
            channel.release(&mut consumer, item);
            channel.release_complete(&mut consumer, &signals);
        }
        signals.0.store(true, Ordering::Relaxed);
        let reused = (0..8).any(|_| {
            let item = pass(&mut consumer);
            let is_reused = item.slot() == deferred;
            channel.release(&mut consumer, item);
            channel.release_complete(&mut consumer, &signals);
            is_reused
        });
        assert!(reused, "the slot is never reused");
    });
}

/// A producer that keeps a slot reserved while it publishes leaves enough for other producers.
#[test]
fn a_producer_owns_no_more_slots_than_it_may_reserve() {
    alone(20, || {
        let when_full = WhenFull::DropOldest;
        let world = World::new(shape(Delivery::Queue, when_full, 1, (2, 2), (1, 1)));
        let channel = world.channel();
        let mut first = channel.join_producer(1, &*world).unwrap();
        let mut second = channel.join_producer(2, &*world).unwrap();
        let mut consumer = channel.join_consumer(3, &*world).unwrap();
        let mut kept = Vec::new();
        for _ in 0..4 {
            for producer in [&mut first, &mut second] {
                let slots = [(); 2].map(|()| channel.reserve(producer, &*world).expect("free"));
                let (published, reserved) = match one_in(2) {
                    true => (slots[0], slots[1]),
                    false => (slots[1], slots[0]),
                };
                channel.publish(producer, published, &*world, None).unwrap();
                if kept.is_empty()
                    && let Ok(Received::Item(item)) = channel.try_receive(&mut consumer)
                {
                    kept.push(item);
                }
                let again = channel.reserve(producer, &*world).expect("free");
                assert_ne!(again, reserved);
                channel.cancel(producer, again);
                channel.cancel(producer, reserved);
            }
        }
    });
}

/// A word that contradicts the other words ends even a wait without a deadline.
#[test]
fn a_contradictory_word_ends_a_wait() {
    for delivery in [Delivery::Queue, Delivery::Broadcast] {
        alone(1, move || {
            let world = World::new(shape(delivery, WhenFull::DropOldest, 2, (1, 1), (1, 1)));
            let channel = world.channel();
            let mut consumer = channel.join_consumer(2, &*world).unwrap();
            // The word has the number 2, and no item has been published.
            world.ring[0].store(2 << 41, Ordering::Relaxed);
            let ended = channel.receive(&mut consumer, &*world, None);
            assert_eq!(ended.unwrap_err(), ChannelError::Corrupt);
        });
    }
}

/// Hostile words cause errors, and no panic or endless loop.
#[test]
fn hostile_words_cause_errors() {
    alone(100, || {
        platform::allow_timeouts();
        let world = World::new(shape(
            Delivery::Queue,
            WhenFull::DropOldest,
            2,
            (1, 1),
            (1, 2),
        ));
        let channel = world.channel();
        let deadline = || Some(Instant::now() + Duration::from_millis(1));
        let mut producer = channel.join_producer(1, &*world).unwrap();
        let mut consumer = channel.join_consumer(2, &*world).unwrap();
        for _ in 0..6 {
            let words = [&world.ring[..], &world.slots[..]];
            let words = words[pick(2) as usize];
            let value = match pick(4) {
                0 => u64::MAX,
                1 => 0,
                2 => 1 << pick(64),
                _ => pick(u64::MAX),
            };
            words[pick(words.len() as u64) as usize].store(value, Ordering::Relaxed);
            if let Ok(slot) = channel.reserve(&mut producer, &*world) {
                assert!(slot < world.shape.slots());
                if channel
                    .publish(&mut producer, slot, &*world, deadline())
                    .is_err()
                {
                    channel.cancel(&mut producer, slot);
                }
            }
            if let Ok(Received::Item(item)) = channel.try_receive(&mut consumer) {
                assert!(item.slot() < world.shape.slots());
                channel.release(&mut consumer, item);
            }
        }
    });
}
