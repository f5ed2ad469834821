//! Cases about channels whose slots are in the memory of the device.

use crate::failure::{Failure, Verdict};
use crate::faults::sample_channel_kills;
use crate::harness::{Harness, Transfer, deadline};
use crate::pattern::pattern;
use crate::suite::{Outcome, PASSED};
use crosshandle::channel::{Channel, ChannelFault, ChannelOptions, Delivery, WhenFull};
use crosshandle::{Command, Error};
use std::time::Duration;

/// Size of a slot in bytes.
const LEN: usize = 10_000;

/// Items cross in both directions, with copies by the host.
pub(crate) fn items_cross_in_both_directions(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let there = Channel::create(&context, ChannelOptions::new(LEN).depth(2))?;
    peer.ask(format!("channel here {LEN} depth=2"))?;
    let handle: crosshandle::handle::ChannelHandle = peer.ask("channel-handle here")?[0].parse()?;
    let here = Channel::open(&context, &handle)?;
    peer.ask(format!("open-channel there {}", there.consumer_handle()?))?;
    peer.ask("producer p here")?;
    peer.ask("consumer c there")?;
    peer.refused("producer q there", "ReadOnly")?;
    let mut producer = there.producer()?;
    let mut consumer = here.consumer()?;
    for number in 0..20_u64 {
        let len = LEN - number as usize;
        assert_eq!(
            producer.send_timeout(&pattern(number, len), deadline())?,
            number
        );
        peer.ask(format!("receive c {number} {len} 10000"))?;
        peer.ask(format!("send p {number} {len} 10000"))?;
        let item = consumer.receive_timeout(deadline())?;
        assert_eq!((item.number(), item.len()), (number, len));
        assert_eq!(item.to_vec()?, pattern(number, len));
    }
    PASSED
}

/// Queues of both processes write, read and release slots, and the host waits for none of them.
pub(crate) fn queues_publish_and_release(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let channel = Channel::create(&context, ChannelOptions::new(LEN).depth(2).held(3))?;
    peer.ask(format!("open-channel c {}", channel.handle()?))?;
    peer.ask("producer p c")?;
    peer.ask("queue q")?;
    let mut consumer = channel.consumer()?;
    let queue = context.create_queue()?;
    let transfer = Transfer::new(&context)?;
    let copies = context.allocate(LEN)?;
    for round in 0..30_u8 {
        let sent = peer.ask(format!("send p {round} {LEN} 10000 queue=q"))?;
        assert_eq!(sent[0], round.to_string());
        if round % 3 == 0 {
            let item = consumer.receive_timeout(deadline())?;
            assert_eq!(item.to_vec()?, vec![round; LEN]);
            continue;
        }
        let item = consumer.receive_on(&queue, deadline())?;
        queue.submit(Command::copy(item.range()?, copies.all())?)?;
        item.release_on(&queue)?;
        queue.finish_timeout(deadline())?;
        assert_eq!(transfer.read(&copies, 0, LEN)?, vec![round; LEN]);
    }
    PASSED
}

/// Members leave while their queues still use slots. The queues continue, and no slot is reused
/// before.
pub(crate) fn leaving_members_wait_for_their_queues(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let options = ChannelOptions::new(LEN).depth(1).held(1).reserved(1);
    let channel = Channel::create(&context, options.consumers(2))?;
    let gate = context.create_event()?;
    let copies = context.allocate(LEN)?;
    let transfer = Transfer::new(&context)?;
    peer.ask(format!("open-channel c {}", channel.handle()?))?;
    peer.ask(format!("open-event gate {}", gate.handle()?))?;
    peer.ask(format!("open-memory copies {}", copies.handle()?))?;
    peer.ask("queue q")?;
    let mut consumer = channel.consumer()?;

    // A producer leaves before its item is complete.
    peer.ask("producer p c")?;
    peer.ask("submit q barrier after-value=gate:1")?;
    peer.ask(format!("send p 7 {LEN} 10000 queue=q"))?;
    peer.ask("close p")?;
    assert!(consumer.try_receive()?.is_none());
    gate.signal()?;
    let item = consumer.receive_timeout(deadline())?;
    assert_eq!(item.to_vec()?, vec![7; LEN]);
    drop(item);
    let ended = consumer.receive_timeout(deadline());
    assert!(matches!(ended, Err(Error::Channel(ChannelFault::Closed))));
    drop(consumer);

    // A consumer leaves before its queue has read the item.
    let mut producer = member(|| channel.producer())?;
    peer.ask("consumer r c")?;
    producer.send_timeout(&[1; LEN], deadline())?;
    peer.ask("submit q barrier after-value=gate:2")?;
    peer.ask(format!("receive r 0 {LEN} 10000 queue=q to=copies"))?;
    peer.ask("close r")?;
    let mut consumer = channel.consumer()?;
    for _ in 0..10 {
        producer.send_timeout(&[2; LEN], deadline())?;
        drop(consumer.receive_timeout(deadline())?);
    }
    gate.signal()?;
    peer.ask("finish q 10000")?;
    assert_eq!(transfer.read(&copies, 0, LEN)?, vec![1; LEN]);
    drop(member(|| channel.consumer())?);
    PASSED
}

/// An item is replaced while a queue still writes its slot. The slot is not reused before.
pub(crate) fn no_slot_is_reused_while_a_queue_writes_it(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let options = ChannelOptions::new(LEN).depth(1).held(1).reserved(1);
    let options = options.when_full(WhenFull::DropOldest).producers(2);
    let channel = Channel::create(&context, options)?;
    let gate = context.create_event()?;
    peer.ask(format!("open-channel c {}", channel.handle()?))?;
    peer.ask(format!("open-event gate {}", gate.handle()?))?;
    peer.ask("queue q")?;
    peer.ask("producer p c")?;
    peer.ask("submit q barrier after-value=gate:1")?;
    for _ in 0..3 {
        peer.ask(format!("send p 7 {LEN} 10000 queue=q"))?;
    }
    let mut consumer = channel.consumer()?;
    let mut producer = channel.producer()?;
    // The queue writes three of the four slots.
    producer.send_timeout(&[1; LEN], deadline())?;
    let item = consumer.receive_timeout(deadline())?;
    let full = producer.try_reserve();
    assert!(matches!(full, Err(Error::TimedOut(_))), "{full:?}");
    gate.signal()?;
    peer.ask("finish q 10000")?;
    assert_eq!(item.to_vec()?, vec![1; LEN]);
    drop(item);
    for _ in 0..10 {
        producer.send_timeout(&[2; LEN], deadline())?;
        let item = consumer.receive_timeout(deadline())?;
        assert_eq!(item.to_vec()?, vec![2; LEN]);
    }
    PASSED
}

/// A consumer that has released all its items on a queue waits for that queue.
pub(crate) fn consumers_wait_for_their_own_queues(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let channel = Channel::create(&context, ChannelOptions::new(LEN).depth(4).held(2))?;
    peer.ask(format!("open-channel c {}", channel.handle()?))?;
    peer.ask("producer p c")?;
    peer.ask("queue q")?;
    let (queue, gate) = (context.create_queue()?, context.create_event()?);
    let mut consumer = channel.consumer()?;
    for round in 0..20_u64 {
        for seed in 0..3 {
            peer.ask(format!("send p {seed} {LEN} 10000 queue=q"))?;
        }
        queue.submit(Command::barrier().after_value(&gate, round + 1))?;
        for _ in 0..2 {
            consumer
                .receive_on(&queue, deadline())?
                .release_on(&queue)?;
        }
        assert!(consumer.try_receive()?.is_none());
        let late = consumer.receive_on(&queue, Duration::from_millis(1));
        assert!(matches!(late, Err(Error::TimedOut(_))), "{late:?}");
        gate.signal()?;
        consumer
            .receive_on(&queue, deadline())?
            .release_on(&queue)?;
    }
    PASSED
}

/// A producer that dies loses no published item, and its slot returns. Slots of a dead consumer
/// return too.
pub(crate) fn deaths_cost_no_slot(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let options = ChannelOptions::new(LEN).depth(4).held(2).reserved(1);
    let channel = Channel::create(&context, options)?;
    for _ in 0..2 {
        let (writer, reader) = (harness.peer()?, harness.peer()?);
        for peer in [&writer, &reader] {
            peer.ask(format!("open-channel c {}", channel.handle()?))?;
        }
        writer.ask("producer p c")?;
        reader.ask("consumer c c")?;
        for seed in 0..5 {
            writer.ask(format!("send p {seed} {LEN} 10000"))?;
            if seed < 2 {
                reader.ask(format!("receive c {seed} {LEN} 10000 keep=yes"))?;
            }
        }
        writer.ask("reserve-slot p")?;
        writer.kill();
        reader.kill();
        let mut consumer = member(|| channel.consumer())?;
        for seed in 2..5 {
            let item = consumer.receive_timeout(deadline())?;
            assert_eq!(item.to_vec()?, pattern(seed, LEN));
        }
        let ended = consumer.receive_timeout(deadline());
        assert!(matches!(
            ended,
            Err(Error::Channel(ChannelFault::ProducerDied))
        ));
        let mut producer = member(|| channel.producer())?;
        for seed in 0..20 {
            producer.send_timeout(&pattern(seed, 100), deadline())?;
            let item = consumer.receive_timeout(deadline())?;
            assert_eq!(item.to_vec()?, pattern(seed, 100));
        }
    }
    PASSED
}

/// Joins as soon as the driver has released what the dead member had.
fn member<T>(mut join: impl FnMut() -> crosshandle::Result<T>) -> Result<T, Failure> {
    let end = std::time::Instant::now() + deadline();
    loop {
        match join() {
            Err(Error::Channel(ChannelFault::NoPlace)) if std::time::Instant::now() < end => {
                std::thread::yield_now();
            }
            joined => return Ok(joined?),
        }
    }
}

/// Each consumer of a broadcast gets each item.
pub(crate) fn broadcasts_reach_every_consumer(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let options = ChannelOptions::new(LEN).depth(2).consumers(3);
    let channel = Channel::create(&context, options.delivery(Delivery::Broadcast))?;
    let peers = [harness.peer()?, harness.peer()?];
    for peer in &peers {
        peer.ask(format!("open-channel c {}", channel.consumer_handle()?))?;
        peer.ask("consumer c c")?;
    }
    let mut consumer = channel.consumer()?;
    let mut producer = channel.producer()?;
    for number in 0..10 {
        producer.send_timeout(&pattern(number, LEN), deadline())?;
        let item = consumer.receive_timeout(deadline())?;
        assert_eq!(item.to_vec()?, pattern(number, LEN));
        for peer in &peers {
            let reply = peer.ask(format!("receive c {number} {LEN} 10000"))?;
            assert_eq!(reply[0], number.to_string());
        }
    }
    PASSED
}

/// Members die after any instruction of an operation.
pub(crate) fn kills_after_any_instruction_cost_nothing(harness: &Harness) -> Verdict {
    if !harness.is_host() {
        // The words of a channel are in host memory on every device.
        return Ok(Outcome::Skipped("it does not depend on the device"));
    }
    let Some(report) = sample_channel_kills(harness)? else {
        let why = "the system lets no process trace another";
        return Ok(Outcome::Unavailable(why.into()));
    };
    match report.failures.first() {
        Some(failure) => Err(Failure::new(failure)),
        None => Ok(Outcome::Passed(format!(
            "{} kills during {} instructions",
            report.cases, report.steps
        ))),
    }
}
