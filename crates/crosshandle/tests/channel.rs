//! Channels between processes: items, waiting, roles, deaths, and invalid values.

#[allow(dead_code, reason = "each program uses a part of it")]
mod common;

use common::{DEADLINE, Directory, Parent, Process, is};
use crosshandle::channel::{
    ArrayLayout, Channel, ChannelFault, ChannelOptions, Consumer, Delivery, Item, Producer,
    WhenFull,
};
use crosshandle::handle::ChannelHandle;
use crosshandle::holder::{self, HoldOptions, Holder, ServeOptions};
use crosshandle::{Access, Command, Context, Error, Event, Queue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::pin::{Pin, pin};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const SENDER: &str = "sender";
const RECEIVER: &str = "receiver";
const HOLDER: &str = "holder";
const QUEUE: &str = "queue";

/// Runs the role of a second process, if this is one. All tests share these roles.
fn role() -> bool {
    if is(SENDER) {
        send();
    } else if is(RECEIVER) {
        receive();
    } else if is(QUEUE) {
        work();
    } else if is(HOLDER) {
        let mut parent = Parent::new();
        let options = ServeOptions::new().socket_dir(Directory::inherited().path());
        holder::serve(options, || parent.say("ready")).expect("it held");
    } else {
        return false;
    }
    true
}

/// Opens the channel that the parent names.
fn opened(parent: &mut Parent) -> Channel {
    let handle = parent.hear().expect("a handle");
    let context = Directory::inherited().context();
    Channel::open(&context, &handle.parse().expect("a handle")).expect("opened")
}

/// Sends as many numbers as the parent says each time, and reserves a slot at "reserve".
fn send() {
    let mut parent = Parent::new();
    let channel = opened(&mut parent);
    let mut producer = match channel.producer() {
        Ok(producer) => producer,
        Err(error) => return parent.say(error),
    };
    parent.say("joined");
    let mut slots = Vec::new();
    let mut next = 0_u64;
    while let Some(line) = parent.hear() {
        match line.as_str() {
            "reserve" => slots.push(producer.reserve().expect("a slot")),
            "leave" => break,
            number => {
                let end = next + number.parse::<u64>().expect("a number");
                for value in next..end {
                    producer
                        .send_timeout(&value.to_le_bytes(), DEADLINE)
                        .expect("sent");
                }
                next = end;
            }
        }
        parent.say("done");
    }
}

/// Receives items until the channel ends, or keeps as many as the parent says.
fn receive() {
    let mut parent = Parent::new();
    let channel = opened(&mut parent);
    assert!(channel.producer().is_err());
    let mut consumer = channel.consumer().expect("a consumer");
    parent.say("joined");
    let mut kept = Vec::new();
    while let Some(line) = parent.hear() {
        if line == "all" {
            let mut numbers = Vec::new();
            let ended = loop {
                match consumer.receive_timeout(DEADLINE) {
                    Ok(item) => numbers.push(value(&item)),
                    Err(error) => break error,
                }
            };
            parent.say(format!("{numbers:?} {:?}", fault(ended)));
        } else {
            for _ in 0..line.parse::<usize>().expect("a number") {
                kept.push(consumer.receive_timeout(DEADLINE).expect("an item"));
            }
            parent.say("kept");
        }
    }
}

/// A member whose queue the parent holds back with an event. Each line is one step.
fn work() {
    let mut parent = Parent::new();
    let channel = opened(&mut parent);
    let context = Directory::inherited().context();
    let queue = context.create_queue().expect("a queue");
    let copy = context.allocate(8).expect("memory");
    let (mut producer, mut consumer, mut item, mut gate) = (None, None, None, None);
    parent.say("joined");
    while let Some(line) = parent.hear() {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("gate", handle) => {
                let handle = handle.parse().expect("a handle");
                gate = Some(context.open_event(&handle).expect("an event"));
            }
            ("hold", value) => {
                let gate = gate.as_ref().expect("a gate");
                let value = value.parse().expect("a number");
                let barrier = Command::barrier().after_value(gate, value);
                queue.submit(barrier).expect("submitted");
            }
            ("produce", _) => producer = Some(channel.producer().expect("a producer")),
            ("consume", _) => consumer = Some(channel.consumer().expect("a consumer")),
            // Makes the queue fill a slot with a byte.
            ("publish", byte) => {
                let producer = producer.as_mut().expect("a producer");
                let slot = producer.reserve().expect("a slot");
                let byte = byte.parse().expect("a byte");
                let fill = Command::fill(slot.range().unwrap(), &[byte]).unwrap();
                queue.submit(fill).expect("submitted");
                let published = producer.publish_on(&queue, slot, DEADLINE);
                published.expect("published");
            }
            ("receive", _) => {
                let consumer: &mut Consumer = consumer.as_mut().expect("a consumer");
                item = Some(consumer.receive_timeout(DEADLINE).expect("an item"));
            }
            // Makes the queue copy the item, and release it.
            ("release", _) => {
                let item = item.take().expect("an item");
                let range = item.range().unwrap().range(..8).unwrap();
                queue
                    .submit(Command::copy(range, copy.all()).unwrap())
                    .expect("submitted");
                item.release_on(&queue).expect("released");
            }
            ("copied", byte) => {
                queue.finish_timeout(DEADLINE).expect("finished");
                let mut bytes = [0; 8];
                copy.read(0, &mut bytes).expect("8 bytes");
                let byte: u8 = byte.parse().expect("a byte");
                assert_eq!(bytes, [byte; 8]);
            }
            ("finish", _) => queue.finish_timeout(DEADLINE).expect("finished"),
            ("task", _) => {
                let consumer = consumer.as_mut().expect("a consumer");
                assert!(is_readable(consumer, DEADLINE), "a first look");
                assert!(consumer.try_receive().expect("alive").is_none());
            }
            ("await", _) => {
                let consumer = consumer.as_mut().expect("a consumer");
                let received = loop {
                    assert!(is_readable(consumer, DEADLINE), "the process is not woken");
                    if let Some(item) = consumer.try_receive().expect("alive") {
                        break item;
                    }
                };
                parent.say(value(&received));
                continue;
            }
            ("leave", _) => (producer, consumer) = (None, None),
            (step, _) => panic!("no such step: {step}"),
        }
        parent.say("done");
    }
}

/// Returns whether the consumer's descriptor becomes readable in time.
fn is_readable(consumer: &mut Consumer, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).expect("short");
    let descriptor = consumer.descriptor().expect("a descriptor");
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&limit)).expect("a poll") == 1
}

/// Starts a process that [`work`]s, and takes some steps.
fn working(test: &str, directory: &Directory, channel: &Channel, steps: &[&str]) -> Process {
    let mut process = started(test, QUEUE, directory, channel.handle().unwrap());
    for step in steps {
        take(&mut process, step);
    }
    process
}

fn take(process: &mut Process, step: &str) {
    process.say(step);
    assert_eq!(process.hear(), "done", "{step}");
}

/// Returns a directory and a channel. A second process runs its role instead, and gets `None`.
fn set_up(options: ChannelOptions) -> Option<(Directory, Channel)> {
    set_up_in(Directory::context, options)
}

/// Returns a channel whose process waits an hour for the answers of others, so that a call that
/// waits for a stopped process makes the test fail. Otherwise like [`set_up`].
fn set_up_patiently(options: ChannelOptions) -> Option<(Directory, Channel)> {
    let patient = |directory: &Directory| {
        let hour = Duration::from_secs(3600);
        common::context(directory.options().exchange_timeout(hour))
    };
    set_up_in(patient, options)
}

fn set_up_in(
    context: impl FnOnce(&Directory) -> Context,
    options: ChannelOptions,
) -> Option<(Directory, Channel)> {
    if role() {
        return None;
    }
    let directory = Directory::new();
    let channel = Channel::create(&context(&directory), options).expect("a channel");
    Some((directory, channel))
}

/// Runs `body` on a thread, which must end in time.
fn in_time<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || done.send(body()));
    is_done.recv_timeout(DEADLINE).expect("it ends in time")
}

#[test]
fn a_stopped_task_delays_no_sender() {
    const TEST: &str = "a_stopped_task_delays_no_sender";
    let Some((directory, channel)) = set_up_patiently(ChannelOptions::new(8).depth(4)) else {
        return;
    };
    let mut producer = channel.producer().expect("a producer");
    let mut task = working(TEST, &directory, &channel, &["consume", "task"]);
    task.stop();
    let producer = in_time(move || {
        producer.try_send(&7_u64.to_le_bytes()).expect("sent");
        producer
    });
    task.resume();
    task.say("await");
    assert_eq!(task.hear(), "7");
    drop(producer);
}

#[test]
fn an_item_of_a_stopped_producer_is_not_lost() {
    const TEST: &str = "an_item_of_a_stopped_producer_is_not_lost";
    let Some((directory, channel)) = set_up_patiently(ChannelOptions::new(8).depth(4)) else {
        return;
    };
    let mut consumer = channel.consumer().expect("a consumer");
    let mut sender = working(TEST, &directory, &channel, &["produce", "publish 1"]);
    sender.stop();
    let mut consumer = in_time(move || {
        assert!(consumer.try_receive().expect("alive").is_none());
        let late = consumer.receive_timeout(Duration::ZERO).unwrap_err();
        assert!(late.is_timeout(), "{late}");
        let late = consumer
            .receive_timeout(Duration::from_millis(1))
            .unwrap_err();
        assert!(late.is_timeout(), "{late}");
        let task = &mut std::task::Context::from_waker(std::task::Waker::noop());
        assert!(pin!(consumer.receiving()).poll(task).is_pending());
        consumer
    });
    sender.resume();
    let item = finished(consumer.receiving()).expect("an item");
    assert_eq!(item.to_vec().unwrap(), [1; 8]);
    take(&mut sender, "publish 2");
    let item = consumer.receive_timeout(DEADLINE).expect("an item");
    assert_eq!(item.to_vec().unwrap(), [2; 8]);
}

#[test]
fn a_queue_reads_the_items_of_a_consumer_that_has_left() {
    const TEST: &str = "a_queue_reads_the_items_of_a_consumer_that_has_left";
    let options = ChannelOptions::new(8).depth(1).held(1).reserved(1);
    let Some((directory, channel)) = set_up(options.consumers(2)) else {
        return;
    };
    let gate = directory.context().create_event().unwrap();
    let mut producer = channel.producer().expect("a producer");
    let handle = format!("gate {}", gate.handle().unwrap());
    let mut reader = working(TEST, &directory, &channel, &["consume", &handle]);
    producer.send(&[1; 8]).expect("sent");
    for step in ["receive", "hold 1", "release", "leave"] {
        take(&mut reader, step);
    }
    let mut consumer = channel.consumer().expect("a consumer");
    for _ in 0..20 {
        producer.send(&[2; 8]).expect("sent");
        drop(consumer.receive_timeout(DEADLINE).expect("an item"));
    }
    gate.signal().unwrap();
    take(&mut reader, "copied 1");
    // The place is free as soon as the queue has read the slot.
    await_place(&channel);
}

#[test]
fn items_of_a_producer_that_has_left_are_completed() {
    const TEST: &str = "items_of_a_producer_that_has_left_are_completed";
    let Some((directory, channel)) = set_up(ChannelOptions::new(8).depth(4)) else {
        return;
    };
    let gate = directory.context().create_event().unwrap();
    let handle = format!("gate {}", gate.handle().unwrap());
    let mut consumer = channel.consumer().expect("a consumer");
    for round in 1..3_u64 {
        let hold = format!("hold {round}");
        let steps = ["produce", &handle, &hold, "publish 1", "publish 2", "leave"];
        let mut writer = working(TEST, &directory, &channel, &steps);
        if round == 1 {
            assert!(consumer.try_receive().expect("not the end").is_none());
        }
        gate.signal().unwrap();
        // In the second round the producer leaves before this process opens its event.
        if round == 2 {
            take(&mut writer, "finish");
            let deadline = Instant::now() + DEADLINE;
            while channel.members().0 > 0 {
                assert!(Instant::now() < deadline, "the producer does not leave");
                thread::yield_now();
            }
        }
        for byte in 1..3 {
            let item = consumer.receive_timeout(DEADLINE).expect("an item");
            assert_eq!(item.to_vec().unwrap(), [byte; 8]);
        }
        let ended = consumer.receive_timeout(DEADLINE).unwrap_err();
        assert_eq!(fault(ended), ChannelFault::Closed);
    }
}

/// Waits until a consumer can join.
fn await_place(channel: &Channel) {
    let deadline = Instant::now() + DEADLINE;
    while let Err(error) = channel.consumer() {
        assert_eq!(fault(error), ChannelFault::NoPlace);
        assert!(Instant::now() < deadline, "the place stays taken");
        thread::yield_now();
    }
}

/// Returns a queue that waits for the next signal of the returned event, and a queue without work.
fn slow_and_fast(context: &Context) -> (Queue, Event, Queue) {
    let (slow, gate) = (
        context.create_queue().unwrap(),
        context.create_event().unwrap(),
    );
    let barrier = Command::barrier().after_value(&gate, 1);
    slow.submit(barrier).expect("submitted");
    (slow, gate, context.create_queue().unwrap())
}

/// The signals of two queues complete in another order than the queues were used.
#[test]
fn a_producer_stays_until_all_its_queues_have_ended() {
    let directory = Directory::new();
    let channel = made(&directory, ChannelOptions::new(8).depth(2));
    let (slow, gate, fast) = slow_and_fast(&directory.context());
    let mut consumer = channel.consumer().expect("a consumer");
    let mut producer = channel.producer().expect("a producer");
    for (queue, byte) in [(&slow, 1), (&fast, 2)] {
        let slot = producer.reserve().expect("a slot");
        let fill = Command::fill(slot.range().unwrap(), &[byte]).unwrap();
        queue.submit(fill).expect("submitted");
        let published = producer.publish_on(queue, slot, DEADLINE);
        published.expect("published");
    }
    fast.finish_timeout(DEADLINE).expect("finished");
    drop(producer);
    assert_eq!(channel.members().0, 1, "the producer has left too early");
    assert!(consumer.try_receive().expect("no failure").is_none());
    gate.signal().unwrap();
    for byte in 1..3 {
        let item = consumer.receive_timeout(DEADLINE).expect("an item");
        assert_eq!(item.to_vec().unwrap(), [byte; 8]);
    }
    let ended = consumer.receive_timeout(DEADLINE).unwrap_err();
    assert_eq!(fault(ended), ChannelFault::Closed);
}

#[test]
fn a_consumer_stays_until_all_its_queues_have_ended() {
    let directory = Directory::new();
    let channel = made(&directory, ChannelOptions::new(8).depth(2).held(2));
    let (slow, gate, fast) = slow_and_fast(&directory.context());
    let mut consumer = channel.consumer().expect("a consumer");
    let mut producer = channel.producer().expect("a producer");
    for queue in [&slow, &fast] {
        producer.send(&[1; 8]).expect("sent");
        let item = consumer.receive_timeout(DEADLINE).expect("an item");
        item.release_on(queue).expect("released");
    }
    fast.finish_timeout(DEADLINE).expect("finished");
    drop(consumer);
    let taken = channel.consumer().expect_err("a queue still reads a slot");
    assert_eq!(fault(taken), ChannelFault::NoPlace);
    gate.signal().unwrap();
    await_place(&channel);
}

/// How a place of a consumer becomes free that has none.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Freed {
    Drop,
    LaterRelease,
    AnotherQueue,
}

/// A consumer has used all its places, and a queue that does not end releases one of them.
#[test]
fn a_waiting_consumer_learns_which_place_becomes_free_first() {
    let directory = Directory::new();
    let context = directory.context();
    for (freed, by_descriptor) in [Freed::Drop, Freed::LaterRelease, Freed::AnotherQueue]
        .into_iter()
        .flat_map(|freed| [(freed, false), (freed, true)])
    {
        let channel = made(&directory, ChannelOptions::new(8).depth(4).held(2));
        let (slow, slow_gate, _) = slow_and_fast(&context);
        let (other, other_gate, fast) = slow_and_fast(&context);
        let mut consumer = channel.consumer().expect("a consumer");
        let mut producer = channel.producer().expect("a producer");
        for number in 0..3_u64 {
            producer.send(&number.to_le_bytes()).expect("sent");
        }
        let mut receive = || consumer.receive_timeout(DEADLINE).expect("an item");
        let (first, second) = (receive(), receive());
        first.release_on(&slow).expect("released");
        let mut second = Some(second);
        if freed == Freed::AnotherQueue {
            let second = second.take().expect("an item");
            second.release_on(&other).expect("released");
        }
        let (waits, is_waiting) = mpsc::channel();
        let (received, is_received) = mpsc::channel();
        let waiter = thread::spawn(move || {
            let item = match by_descriptor {
                true => received_by_descriptor(&mut consumer, || waits.send(()).unwrap()),
                false => received_by_task(&mut consumer, || waits.send(()).unwrap()),
            };
            received.send(value(&item)).unwrap();
        });
        is_waiting.recv_timeout(DEADLINE).expect("it waits");
        match (freed, second) {
            (Freed::LaterRelease, Some(second)) => second.release_on(&fast).expect("released"),
            (_, Some(second)) => drop(second),
            (_, None) => drop(other_gate.signal().unwrap()),
        }
        let number = is_received.recv_timeout(DEADLINE);
        assert_eq!(number, Ok(2), "{freed:?}, by a descriptor: {by_descriptor}");
        waiter.join().expect("it ends");
        slow_gate.signal().unwrap();
        other_gate.signal().unwrap();
    }
}

/// Waits for an item with a future, and calls `waits` when the future waits.
fn received_by_task(consumer: &mut Consumer, waits: impl FnOnce()) -> Item {
    let task = &mut std::task::Context::from_waker(std::task::Waker::noop());
    assert!(pin!(consumer.receiving()).poll(task).is_pending());
    waits();
    finished(consumer.receiving()).expect("an item")
}

/// Waits for an item with a descriptor, and calls `waits` when the descriptor is not readable.
fn received_by_descriptor(consumer: &mut Consumer, waits: impl FnOnce()) -> Item {
    assert!(is_readable(consumer, DEADLINE));
    assert!(consumer.try_receive().expect("alive").is_none());
    assert!(!is_readable(consumer, Duration::ZERO));
    waits();
    loop {
        assert!(is_readable(consumer, DEADLINE), "it is not woken");
        if let Some(item) = consumer.try_receive().expect("alive") {
            return item;
        }
    }
}

/// A slot that could not be published after one queue is published after another queue.
#[test]
fn an_item_is_complete_when_all_queues_have_written_it() {
    let directory = Directory::new();
    let channel = made(&directory, ChannelOptions::new(8).depth(1));
    let (slow, gate, fast) = slow_and_fast(&directory.context());
    let mut consumer = channel.consumer().expect("a consumer");
    let mut producer = channel.producer().expect("a producer");
    producer.send(&[1; 8]).expect("sent");
    let slot = producer.reserve().expect("a slot");
    let fill = Command::fill(slot.range().unwrap(), &[2]).unwrap();
    slow.submit(fill).expect("submitted");
    let full = producer.publish_on(&slow, slot, Duration::ZERO);
    let full = full.unwrap_err();
    assert!(full.error.is_timeout());
    drop(consumer.receive_timeout(DEADLINE).expect("an item"));
    let published = producer.publish_on(&fast, full.slot, DEADLINE);
    published.expect("published");
    let late = consumer.receive_timeout(Duration::from_millis(20));
    assert!(late.unwrap_err().is_timeout());
    gate.signal().unwrap();
    let item = consumer.receive_timeout(DEADLINE).expect("an item");
    assert_eq!(item.to_vec().unwrap(), [2; 8]);
}

/// The error of a newer item does not take the place of the latest good one.
#[test]
fn the_latest_item_survives_the_failure_of_a_newer_one() {
    const TEST: &str = "the_latest_item_survives_the_failure_of_a_newer_one";
    let options = ChannelOptions::new(8).depth(2).held(2).producers(2);
    let Some((directory, channel)) = set_up(options) else {
        return;
    };
    let gate = directory.context().create_event().unwrap();
    let handle = format!("gate {}", gate.handle().unwrap());
    let mut consumer = channel.consumer().expect("a consumer");
    let mut producer = channel.producer().expect("a producer");
    let steps = ["produce", &handle, "publish 1", "hold 1"];
    let mut writer = working(TEST, &directory, &channel, &steps);
    // This process opens the writer's event.
    drop(consumer.receive_timeout(DEADLINE).expect("an item"));
    producer.send(&7_u64.to_le_bytes()).expect("sent");
    take(&mut writer, "publish 2");
    writer.kill();
    let deadline = Instant::now() + DEADLINE;
    while channel.members().0 > 1 {
        assert!(Instant::now() < deadline, "the death is not noticed");
        drop(channel.producer());
    }
    let latest = consumer.receive_latest(DEADLINE).expect("the good item");
    assert_eq!(value(&latest), 7);
    let error = consumer.receive_timeout(DEADLINE).expect_err("it failed");
    assert!(!error.is_timeout(), "{error}");
}

/// Items that are replaced, or dropped before they are complete.
#[test]
fn no_slot_is_reused_while_a_queue_writes_it() {
    const TEST: &str = "no_slot_is_reused_while_a_queue_writes_it";
    if role() {
        return;
    }
    let directory = Directory::new();
    let options = ChannelOptions::new(8).depth(1).held(1).reserved(1);
    let options = options.when_full(WhenFull::DropOldest).producers(2);
    let channel = made(&directory, options);
    let gate = directory.context().create_event().unwrap();
    let handle = format!("gate {}", gate.handle().unwrap());
    let steps = ["produce", &handle, "hold 1", "publish 1", "publish 1"];
    let mut writer = working(TEST, &directory, &channel, &steps);
    let mut producer = channel.producer().expect("a producer");
    let mut consumer = channel.consumer().expect("a consumer");
    // The queue will write two of the four slots. The other two are used again and again.
    for _ in 0..20 {
        producer.try_send(&[2; 8]).expect("a free slot");
    }
    let item = consumer.receive_timeout(DEADLINE).expect("an item");
    take(&mut writer, "publish 3");
    // The queue will write three slots, and the consumer has the fourth.
    let busy = producer.try_reserve().unwrap_err();
    assert!(busy.is_timeout(), "{busy}");
    let busy = producer.try_send(&[4; 8]).unwrap_err();
    assert!(busy.is_timeout(), "{busy}");
    gate.signal().unwrap();
    take(&mut writer, "finish");
    assert_eq!(
        item.to_vec().unwrap(),
        [2; 8],
        "a queue wrote a received slot"
    );
    drop(item);
    for _ in 0..20 {
        producer.send_timeout(&[2; 8], DEADLINE).expect("free");
    }
}

/// A slot that was not published while a queue writes it is not used meanwhile.
#[test]
fn a_dropped_slot_is_not_reused_while_a_queue_writes_it() {
    let directory = Directory::new();
    let channel = made(&directory, ChannelOptions::new(8).depth(1).reserved(1));
    let context = directory.context();
    let (queue, gate) = (
        context.create_queue().unwrap(),
        context.create_event().unwrap(),
    );
    let mut consumer = channel.consumer().expect("a consumer");
    let mut producer = channel.producer().expect("a producer");
    producer.send(&[1; 8]).expect("sent");
    queue
        .submit(Command::barrier().after_value(&gate, 1))
        .unwrap();
    let slot = producer.reserve().expect("a slot");
    let full = producer.publish_on(&queue, slot, Duration::ZERO);
    let full = full.unwrap_err();
    assert!(full.error.is_timeout());
    drop(full);
    let busy = producer.try_reserve().unwrap_err();
    assert!(busy.is_timeout(), "{busy}");
    gate.signal().unwrap();
    let slot = producer.reserve_timeout(DEADLINE).expect("a slot");
    drop(consumer.receive_timeout(DEADLINE).expect("an item"));
    producer.publish(slot).expect("published");
    consumer.receive_timeout(DEADLINE).expect("an item");
}

#[test]
fn a_consumer_waits_for_its_own_queue() {
    const TEST: &str = "a_consumer_waits_for_its_own_queue";
    let Some((directory, channel)) = set_up(ChannelOptions::new(8).depth(8).held(1)) else {
        return;
    };
    let context = directory.context();
    let (queue, gate) = (
        context.create_queue().unwrap(),
        context.create_event().unwrap(),
    );
    let mut consumer = channel.consumer().expect("a consumer");
    let mut sender = started(TEST, SENDER, &directory, channel.handle().unwrap());
    sender.say("6");
    assert_eq!(sender.hear(), "done");
    // Holds the queue back, and lets it release the item.
    let release = |item: Item, value: u64| {
        let barrier = Command::barrier().after_value(&gate, value);
        queue.submit(barrier).unwrap();
        item.release_on(&queue).expect("released");
    };
    let item = consumer.receive_on(&queue, DEADLINE).expect("an item");
    assert_eq!(item.number(), 0);
    release(item, 1);
    assert!(consumer.try_receive().expect("it will have room").is_none());
    let late = consumer.receive_timeout(Duration::from_millis(1));
    assert!(late.unwrap_err().is_timeout());
    gate.signal().unwrap();
    let item = consumer.receive_on(&queue, DEADLINE).expect("an item");
    assert_eq!(item.number(), 1);
    // A task waits for the queue too.
    release(item, 2);
    let task = &mut std::task::Context::from_waker(std::task::Waker::noop());
    assert!(pin!(consumer.receiving()).poll(task).is_pending());
    gate.signal().unwrap();
    let item = finished(consumer.receiving()).expect("an item");
    assert_eq!(item.number(), 2);
    // The latest item needs the place of the one before it.
    drop(item);
    let item = consumer.receive_latest(DEADLINE).expect("an item");
    assert_eq!(item.number(), 5);
    // So does the descriptor.
    sender.say("1");
    assert_eq!(sender.hear(), "done");
    release(item, 3);
    assert!(is_readable(&mut consumer, DEADLINE), "a first look");
    assert!(consumer.try_receive().expect("alive").is_none());
    assert!(!is_readable(&mut consumer, Duration::ZERO));
    gate.signal().unwrap();
    assert!(is_readable(&mut consumer, DEADLINE), "nothing is reported");
    let item = consumer.try_receive().expect("alive").expect("an item");
    assert_eq!(item.number(), 6);
}

fn fault(error: Error) -> ChannelFault {
    match error {
        Error::Channel(fault) => fault,
        error => panic!("{error}"),
    }
}

fn value(item: &Item) -> u64 {
    let mut bytes = [0; 8];
    item.read(0, &mut bytes).expect("8 bytes");
    u64::from_le_bytes(bytes)
}

fn started(test: &str, role: &str, directory: &Directory, handle: ChannelHandle) -> Process {
    let mut process = Process::start(test, role, directory);
    process.say(&handle.to_string());
    assert_eq!(process.hear(), "joined");
    process
}

fn made(directory: &Directory, options: ChannelOptions) -> Channel {
    Channel::create(&directory.context(), options).expect("a channel")
}

/// Receives numbers until the channel ends.
fn all(consumer: &mut Consumer) -> (Vec<u64>, ChannelFault) {
    let mut numbers = Vec::new();
    loop {
        match consumer.receive_timeout(DEADLINE) {
            Ok(item) => numbers.push(value(&item)),
            Err(error) => return (numbers, fault(error)),
        }
    }
}

#[test]
fn items_cross_processes_in_order_and_the_channel_closes() {
    const TEST: &str = "items_cross_processes_in_order_and_the_channel_closes";
    let Some((directory, channel)) = set_up(ChannelOptions::new(64).depth(4)) else {
        return;
    };
    let mut consumer = channel.consumer().expect("a consumer");
    let mut sender = started(TEST, SENDER, &directory, channel.handle().unwrap());
    sender.say("1000");
    sender.say("leave");
    let (numbers, ended) = all(&mut consumer);
    assert_eq!(numbers, Vec::from_iter(0..1000));
    assert_eq!(ended, ChannelFault::Closed);
    assert_eq!(channel.published(), 1000);
}

#[test]
fn all_items_of_a_dead_producer_arrive_before_the_error() {
    const TEST: &str = "all_items_of_a_dead_producer_arrive_before_the_error";
    let Some((directory, channel)) = set_up(ChannelOptions::new(64).depth(8)) else {
        return;
    };
    let mut consumer = channel.consumer().expect("a consumer");
    let mut sender = started(TEST, SENDER, &directory, channel.handle().unwrap());
    for line in ["5", "reserve"] {
        sender.say(line);
        assert_eq!(sender.hear(), "done");
    }
    sender.kill();
    let (numbers, ended) = all(&mut consumer);
    assert_eq!(numbers, [0, 1, 2, 3, 4]);
    assert_eq!(ended, ChannelFault::ProducerDied);
    assert!(Error::Channel(ended).is_peer_dead());
    // The next producer gets the place, and all slots.
    let mut producer = channel.producer().expect("a place");
    for number in 0..100 {
        producer.send(&u64::to_le_bytes(number)).expect("sent");
        let item = consumer.receive_timeout(DEADLINE).expect("an item");
        assert_eq!(value(&item), number);
    }
}

#[test]
fn a_sleeping_consumer_learns_of_the_death_of_the_last_producer() {
    const TEST: &str = "a_sleeping_consumer_learns_of_the_death_of_the_last_producer";
    let Some((directory, channel)) = set_up(ChannelOptions::new(64)) else {
        return;
    };
    let mut consumer = channel.consumer().expect("a consumer");
    let sender = started(TEST, SENDER, &directory, channel.handle().unwrap());
    let receiving = thread::spawn(move || consumer.receive().map(drop));
    sender.kill();
    let ended = receiving.join().expect("no panic").unwrap_err();
    assert_eq!(fault(ended), ChannelFault::ProducerDied);
}

#[test]
fn a_polling_consumer_learns_of_the_death_of_the_last_producer() {
    const TEST: &str = "a_polling_consumer_learns_of_the_death_of_the_last_producer";
    let Some((directory, channel)) = set_up(ChannelOptions::new(64)) else {
        return;
    };
    let mut consumer = channel.consumer().expect("a consumer");
    let sender = started(TEST, SENDER, &directory, channel.handle().unwrap());
    assert!(consumer.try_receive().expect("alive").is_none());
    sender.kill();
    let deadline = Instant::now() + DEADLINE;
    let ended = loop {
        match consumer.try_receive() {
            Ok(item) => assert!(item.is_none()),
            Err(error) => break fault(error),
        }
        assert!(Instant::now() < deadline, "the death is not noticed");
        thread::yield_now();
    };
    assert_eq!(ended, ChannelFault::ProducerDied);
}

#[test]
fn a_task_that_waits_after_a_death_learns_of_it() {
    const TEST: &str = "a_task_that_waits_after_a_death_learns_of_it";
    let Some((directory, channel)) = set_up(ChannelOptions::new(64).producers(2)) else {
        return;
    };
    let mut consumer = channel.consumer().expect("a consumer");
    started(TEST, SENDER, &directory, channel.handle().unwrap()).kill();
    let ended = finished(consumer.receiving()).unwrap_err();
    assert_eq!(fault(ended), ChannelFault::ProducerDied);
}

#[test]
fn a_task_that_waited_before_a_producer_joined_learns_of_its_death() {
    const TEST: &str = "a_task_that_waited_before_a_producer_joined_learns_of_its_death";
    let Some((directory, channel)) = set_up(ChannelOptions::new(64)) else {
        return;
    };
    let mut consumer = channel.consumer().expect("a consumer");
    let (told, armed) = mpsc::channel();
    let waiting = thread::spawn(move || {
        let mut receiving = pin!(consumer.receiving());
        finished(std::future::poll_fn(|task| {
            let polled = receiving.as_mut().poll(task);
            let _ = told.send(());
            polled.map(|received| received.map(drop))
        }))
    });
    armed.recv_timeout(DEADLINE).expect("a first poll");
    let sender = started(TEST, SENDER, &directory, channel.handle().unwrap());
    armed
        .recv_timeout(DEADLINE)
        .expect("it watches the producer");
    sender.kill();
    let ended = waiting.join().expect("no panic").unwrap_err();
    assert_eq!(fault(ended), ChannelFault::ProducerDied);
}

#[test]
fn a_consumer_with_one_place_receives_the_latest_item() {
    let directory = Directory::new();
    for delivery in [Delivery::Queue, Delivery::Broadcast] {
        let options = ChannelOptions::new(8).delivery(delivery).depth(4).held(1);
        let channel = made(&directory, options);
        let mut consumer = channel.consumer().expect("a consumer");
        let mut producer = channel.producer().expect("a producer");
        for number in 0..3_u64 {
            producer.send(&number.to_le_bytes()).expect("sent");
        }
        let latest = consumer.receive_latest(DEADLINE).expect("an item");
        assert_eq!(value(&latest), 2);
    }
}

#[test]
fn slots_of_a_dead_consumer_return() {
    const TEST: &str = "slots_of_a_dead_consumer_return";
    let Some((directory, channel)) = set_up(ChannelOptions::new(64).depth(2).held(3)) else {
        return;
    };
    let mut producer = channel.producer().expect("a producer");
    for round in 0..3 {
        let handle = channel.consumer_handle().unwrap();
        let mut receiver = started(TEST, RECEIVER, &directory, handle);
        receiver.say("3");
        for value in 0..5_u64 {
            producer
                .send_timeout(&value.to_le_bytes(), DEADLINE)
                .expect("sent");
        }
        assert_eq!(receiver.hear(), "kept");
        let full = producer.try_send(&[0; 8]).unwrap_err();
        assert!(full.is_timeout(), "round {round}: {full}");
        receiver.kill();
        let mut consumer = channel.consumer().expect("the dead consumer's place");
        for expected in 3..5 {
            let item = consumer.receive_timeout(DEADLINE).expect("an item");
            assert_eq!(value(&item), expected, "delivered twice");
        }
        for number in 0..50 {
            producer
                .send_timeout(&u64::to_le_bytes(number), DEADLINE)
                .expect("sent");
            let item = consumer.receive_timeout(DEADLINE).expect("an item");
            assert_eq!(value(&item), number);
        }
    }
}

#[test]
fn every_consumer_of_a_broadcast_gets_every_item() {
    const TEST: &str = "every_consumer_of_a_broadcast_gets_every_item";
    let options = ChannelOptions::new(8).delivery(Delivery::Broadcast);
    let Some((directory, channel)) = set_up(options.depth(4).consumers(3)) else {
        return;
    };
    let handle = channel.consumer_handle().unwrap();
    let mut receivers = [(); 3].map(|()| started(TEST, RECEIVER, &directory, handle));
    let mut producer = channel.producer().expect("a producer");
    for receiver in &mut receivers {
        receiver.say("all");
    }
    for number in 0..200_u64 {
        producer
            .send_timeout(&number.to_le_bytes(), DEADLINE)
            .expect("sent");
    }
    drop(producer);
    let expected = format!("{:?} Closed", Vec::from_iter(0..200));
    for mut receiver in receivers {
        assert_eq!(receiver.hear(), expected);
    }
}

#[test]
fn a_stopped_consumer_blocks_no_broadcast_that_drops_the_oldest() {
    const TEST: &str = "a_stopped_consumer_blocks_no_broadcast_that_drops_the_oldest";
    let options = ChannelOptions::new(8)
        .delivery(Delivery::Broadcast)
        .when_full(WhenFull::DropOldest);
    let Some((directory, channel)) = set_up(options.depth(4).consumers(2)) else {
        return;
    };
    let handle = channel.consumer_handle().unwrap();
    let receiver = started(TEST, RECEIVER, &directory, handle);
    receiver.stop();
    let mut consumer = channel.consumer().expect("a consumer");
    let mut producer = channel.producer().expect("a producer");
    for number in 0..100_u64 {
        producer
            .try_send(&number.to_le_bytes())
            .expect("never full");
        let item = consumer.receive_timeout(DEADLINE).expect("an item");
        assert_eq!(value(&item), number);
    }
    for number in 100..110_u64 {
        producer
            .try_send(&number.to_le_bytes())
            .expect("never full");
    }
    let latest = consumer.receive_latest(DEADLINE).expect("an item");
    assert_eq!(value(&latest), 109);
    assert_eq!(consumer.lost(), 6);
}

#[test]
fn roles_and_arrays_are_checked() {
    const TEST: &str = "roles_and_arrays_are_checked";
    if role() {
        return;
    }
    let directory = Directory::new();
    let frame = ArrayLayout::new(1, 8, &[4, 6, 3]).expect("an array");
    let channel = made(&directory, ChannelOptions::of_arrays(frame));
    let producer = channel.producer().expect("a producer");
    let second = channel.producer().unwrap_err();
    assert_eq!(fault(second), ChannelFault::NoPlace);
    let mut sender = Process::start(TEST, SENDER, &directory);
    sender.say(&channel.handle().unwrap().to_string());
    assert!(sender.hear().contains("create it for more"));
    drop(producer);
    let reader = Channel::open(&directory.context(), &channel.consumer_handle().unwrap()).unwrap();
    assert!(matches!(reader.producer(), Err(Error::ReadOnly)));
    assert_eq!(reader.access(), Access::ReadOnly);
    assert_eq!(reader.array(), Some(&frame));

    let mut consumer = reader.consumer().expect("a consumer");
    let mut producer = channel.producer().expect("a producer");
    let mut slot = producer.reserve().expect("a slot");
    let other = ArrayLayout::new(1, 8, &[4, 6, 4]).expect("an array");
    let message = slot.set_array(other).unwrap_err().to_string();
    assert!(message.contains("[4, 6, 3]") && message.contains("[4, 6, 4]"));
    assert!(slot.set_len(71).is_err());
    assert!(slot.set_user(&[0; 65]).is_err());
    slot.set_user(b"camera 1").expect("few bytes");
    slot.write(0, &[7; 72]).expect("72 bytes");
    assert!(slot.write(1, &[7; 72]).is_err());
    producer.publish(slot).expect("published");
    let item = consumer.receive_timeout(DEADLINE).expect("an item");
    assert_eq!(item.array(), Some(&frame));
    assert_eq!(item.to_vec().unwrap(), [7; 72]);
    assert_eq!(&*item.user().unwrap(), b"camera 1");
    assert!(item.time() > 0);
    assert!(matches!(
        item.bytes().unwrap().write(0, &[1]),
        Err(Error::ReadOnly)
    ));
    let memory = directory.context().allocate(8192).unwrap();
    memory.write(0, &[0; 8192]).unwrap();
    let not_a_channel = Channel::open(
        &directory.context(),
        &ChannelHandle::of_memory(&memory.handle().unwrap()),
    );
    assert!(matches!(
        not_a_channel,
        Err(Error::Stale | Error::Protocol(_) | Error::ExporterGone { .. })
    ));
    for options in [
        ChannelOptions::new(0),
        ChannelOptions::new(8).depth(3),
        ChannelOptions::new(8).consumers(65),
        ChannelOptions::new(usize::MAX),
    ] {
        let refused = Channel::create(&directory.context(), options);
        assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    }
}

#[test]
fn a_member_has_a_limited_number_of_slots() {
    let directory = Directory::new();
    let channel = made(
        &directory,
        ChannelOptions::new(8).reserved(2).held(2).depth(4),
    );
    let mut producer = channel.producer().expect("a producer");
    let mut consumer = channel.consumer().expect("a consumer");
    let slots = [(); 2].map(|()| producer.reserve().expect("a slot"));
    assert_eq!(
        fault(producer.reserve().unwrap_err()),
        ChannelFault::TooManyHeld
    );
    drop(slots);
    for number in 0..4_u64 {
        producer.send(&number.to_le_bytes()).expect("sent");
    }
    let items = [(); 2].map(|()| consumer.receive().expect("an item"));
    assert_eq!(
        fault(consumer.receive().unwrap_err()),
        ChannelFault::TooManyHeld
    );
    // Items may be dropped on another thread.
    thread::spawn(move || drop(items)).join().expect("no panic");
    assert_eq!(value(&consumer.receive().expect("an item")), 2);
    // Items outlive their consumer, and the slots return afterwards.
    let last = consumer.receive().expect("an item");
    drop(consumer);
    assert_eq!(
        fault(channel.consumer().unwrap_err()),
        ChannelFault::NoPlace
    );
    assert_eq!(value(&last), 3);
    drop(last);
    drop(channel.consumer().expect("the place is free"));
    let other = made(&directory, ChannelOptions::new(8));
    let slot = other.producer().unwrap().reserve().unwrap();
    assert!(
        producer
            .publish(slot)
            .unwrap_err()
            .error
            .to_string()
            .contains("another producer")
    );
}

/// Polls a future until it is ready. The waker unparks this thread.
fn finished<F: Future>(future: F) -> F::Output {
    smol::block_on(future)
}

#[test]
fn futures_streams_and_descriptors_wait_for_items() {
    const TEST: &str = "futures_streams_and_descriptors_wait_for_items";
    let Some((directory, channel)) = set_up(ChannelOptions::new(8).depth(2)) else {
        return;
    };
    let mut consumer = channel.consumer().expect("a consumer");
    let mut sender = started(TEST, SENDER, &directory, channel.handle().unwrap());
    let task = &mut std::task::Context::from_waker(std::task::Waker::noop());
    // A dropped future loses no item.
    assert!(pin!(consumer.receiving()).poll(task).is_pending());
    for expected in 0..100 {
        sender.say("1");
        let item = finished(consumer.receiving()).expect("an item");
        assert_eq!(value(&item), expected);
        assert_eq!(sender.hear(), "done");
    }
    // The descriptor is readable as long as there are items.
    assert!(
        is_readable(&mut consumer, DEADLINE),
        "the first look is always worthwhile"
    );
    assert!(consumer.try_receive().expect("alive").is_none());
    assert!(!is_readable(&mut consumer, Duration::ZERO));
    for expected in (100..150).step_by(2) {
        sender.say("2");
        for expected in expected..expected + 2 {
            let item = loop {
                assert!(is_readable(&mut consumer, DEADLINE));
                if let Some(item) = consumer.try_receive().expect("alive") {
                    break item;
                }
            };
            assert_eq!(value(&item), expected);
        }
        assert_eq!(sender.hear(), "done");
    }
    while consumer.try_receive().expect("alive").is_some() {}
    assert!(!is_readable(&mut consumer, Duration::ZERO));
    sender.kill();
    assert!(is_readable(&mut consumer, DEADLINE), "a death is reported");
    let ended = loop {
        match consumer.try_receive() {
            Ok(item) => assert!(item.is_none()),
            Err(error) => break fault(error),
        }
        assert!(is_readable(&mut consumer, DEADLINE));
    };
    assert_eq!(ended, ChannelFault::ProducerDied);
}

#[test]
fn the_descriptor_reports_that_a_published_item_is_complete() {
    let directory = Directory::new();
    let channel = made(&directory, ChannelOptions::new(8));
    let context = directory.context();
    let queue = context.create_queue().unwrap();
    let gate = context.create_event().unwrap();
    let mut producer = channel.producer().expect("a producer");
    let mut consumer = channel.consumer().expect("a consumer");
    queue
        .submit(Command::barrier().after_value(&gate, 1))
        .unwrap();
    let slot = producer.reserve().expect("a slot");
    producer
        .publish_on(&queue, slot, DEADLINE)
        .expect("published");
    assert!(is_readable(&mut consumer, DEADLINE), "a first look");
    assert!(consumer.try_receive().expect("alive").is_none());
    assert!(!is_readable(&mut consumer, Duration::ZERO));
    gate.signal().unwrap();
    assert!(is_readable(&mut consumer, DEADLINE), "nothing is reported");
    let item = consumer.try_receive().expect("alive").expect("an item");
    assert_eq!(item.number(), 0);
}

#[test]
fn a_task_publishes_when_there_is_room_and_a_stream_ends() {
    use futures_core::Stream;
    let directory = Directory::new();
    let channel = made(&directory, ChannelOptions::new(8).depth(1));
    let mut consumer = channel.consumer().expect("a consumer");
    let mut producer: Producer = channel.producer().expect("a producer");
    let sending = thread::spawn(move || {
        for number in 0..500_u64 {
            let mut slot = producer.reserve().expect("a slot");
            slot.write(0, &number.to_le_bytes()).expect("8 bytes");
            assert_eq!(
                finished(producer.publishing(slot)).expect("published"),
                number
            );
        }
    });
    let next = |consumer: &mut Consumer| {
        finished(std::future::poll_fn(|task| {
            Pin::new(&mut *consumer).poll_next(task)
        }))
    };
    for expected in 0..500 {
        let item = next(&mut consumer).expect("not the end").expect("an item");
        assert_eq!(value(&item), expected);
    }
    sending.join().expect("no panic");
    assert!(next(&mut consumer).is_none());
}

#[test]
fn queues_publish_wait_and_release() {
    let directory = Directory::new();
    let channel = made(&directory, ChannelOptions::new(4096).depth(2).held(2));
    let (ours, theirs) = (directory.context(), directory.context());
    let other = Channel::open(&theirs, &channel.handle().unwrap()).expect("opened");
    let (first, second) = (ours.create_queue().unwrap(), theirs.create_queue().unwrap());
    let mut producer = channel.producer().expect("a producer");
    let mut consumer = other.consumer().expect("a consumer");
    let gate = ours.create_event().unwrap();
    let copies = theirs.allocate(4096).unwrap();
    for number in 1..50_u8 {
        let slot = producer.reserve().expect("a slot");
        let fill = Command::fill(slot.range().unwrap(), &[number]).unwrap();
        first
            .submit(fill.after_value(&gate, number.into()))
            .unwrap();
        producer
            .publish_on(&first, slot, DEADLINE)
            .expect("published");
        // The item is published but not complete.
        assert!(consumer.try_receive().expect("alive").is_none());
        let late = consumer.receive_timeout(Duration::ZERO).unwrap_err();
        assert!(late.is_timeout());
        if number % 2 == 0 {
            gate.signal().unwrap();
            let item = consumer.receive_timeout(DEADLINE).expect("an item");
            assert_eq!(item.to_vec().unwrap(), [number; 4096]);
            continue;
        }
        let item = consumer.receive_on(&second, DEADLINE).expect("an item");
        let copy = Command::copy(item.range().unwrap(), copies.all()).unwrap();
        second.submit(copy).unwrap();
        item.release_on(&second).expect("released");
        gate.signal().unwrap();
        second.finish_timeout(DEADLINE).unwrap();
        let mut bytes = [0; 4096];
        copies.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [number; 4096]);
    }
}

/// The slot of an item that a queue releases is not written before the queue gets there.
#[test]
fn a_slot_that_a_queue_releases_is_not_reused_before() {
    let directory = Directory::new();
    let channel = made(&directory, ChannelOptions::new(8).depth(1).held(2));
    let context = directory.context();
    let queue = context.create_queue().unwrap();
    let gate = context.create_event().unwrap();
    let mut producer = channel.producer().expect("a producer");
    let mut consumer = channel.consumer().expect("a consumer");
    producer.send(&1_u64.to_le_bytes()).expect("sent");
    let item = consumer.receive().expect("an item");
    let place = item.as_ptr();
    queue
        .submit(Command::barrier().after_value(&gate, 1))
        .unwrap();
    item.release_on(&queue).expect("released");
    for number in 0..20_u64 {
        producer.send(&number.to_le_bytes()).expect("sent");
        assert_ne!(consumer.receive().expect("an item").as_ptr(), place);
    }
    gate.signal().unwrap();
    queue.finish_timeout(DEADLINE).unwrap();
    let is_reused = (0..20_u64).any(|number| {
        producer.send(&number.to_le_bytes()).expect("sent");
        consumer.receive().expect("an item").as_ptr() == place
    });
    assert!(is_reused);
}

#[test]
fn a_held_channel_outlives_its_processes() {
    const TEST: &str = "a_held_channel_outlives_its_processes";
    if role() {
        return;
    }
    let directory = Directory::new();
    let mut keeper = Process::start(TEST, HOLDER, &directory);
    assert_eq!(keeper.hear(), "ready");
    let holder = Holder::new().socket_dir(directory.path());
    let channel = made(&directory, ChannelOptions::new(8).awaits_producers(true));
    let handle = channel.handle().unwrap();
    channel
        .hand_over(&holder, "frames", HoldOptions::new())
        .expect("handed over");
    let mut sender = started(TEST, SENDER, &directory, handle);
    sender.say("3");
    assert_eq!(sender.hear(), "done");
    drop(channel);
    sender.kill();
    let context = directory.context();
    let open = |access| Channel::open_name(&context, &holder, "frames", access).expect("opened");
    let mut consumer = open(Access::ReadOnly).consumer().expect("a consumer");
    for expected in 0..3 {
        assert_eq!(
            value(&consumer.receive_timeout(DEADLINE).expect("an item")),
            expected
        );
    }
    assert!(
        consumer
            .try_receive()
            .expect("it awaits the next producer")
            .is_none()
    );
    assert!(
        consumer
            .receive_timeout(Duration::from_millis(1))
            .unwrap_err()
            .is_timeout()
    );
    // The next producer continues the numbers.
    let mut sender = started(TEST, SENDER, &directory, handle);
    sender.say("1");
    let item = consumer.receive_timeout(DEADLINE).expect("an item");
    assert_eq!((item.number(), value(&item)), (3, 0));
    let refused = open(Access::ReadWrite).producer().unwrap_err();
    assert_eq!(fault(refused), ChannelFault::NoPlace);
    sender.say("leave");
    sender.end();
    open(Access::ReadWrite).producer().expect("a place");
    holder.stop().expect("stopped");
    keeper.end();
}

/// A producer that writes arbitrary headers spoils items, and nothing else.
#[test]
fn invalid_headers_are_refused() {
    let directory = Directory::new();
    let frame = ArrayLayout::new(2, 32, &[4]).expect("an array");
    let channel = made(&directory, ChannelOptions::of_arrays(frame).depth(4));
    let hostile = directory
        .context()
        .open_memory(&channel.handle().unwrap().memory());
    let memory = hostile.expect("the memory of the items");
    let mut producer = channel.producer().expect("a producer");
    let mut consumer = channel.consumer().expect("a consumer");
    let len = memory.len();
    let mut before = vec![0; len];
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut refused = 0;
    for _ in 0..2000 {
        producer.send(&[1; 16]).expect("sent");
        memory.read(0, &mut before).unwrap();
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
        let place = (random >> 33) as usize % (len / 8) * 8;
        memory.write(place, &random.to_le_bytes()).unwrap();
        match consumer.receive_timeout(DEADLINE) {
            Ok(item) => {
                assert_eq!(item.array(), Some(&frame));
                assert_eq!(item.to_vec().unwrap().len(), 16);
                assert!(item.user().unwrap().len() <= 64);
            }
            Err(Error::Channel(ChannelFault::Corrupt | ChannelFault::ProducerDied)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        let opened = Channel::open(&directory.context(), &channel.handle().unwrap());
        drop(opened);
        memory.write(0, &before).unwrap();
    }
    assert!(refused > 0);
}
