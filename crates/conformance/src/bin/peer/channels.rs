//! Commands for channels.

use crate::request::{CommandError, Reply, Request, done, one};
use crate::state::{Object, PeerState};
use crosshandle::Command;
use crosshandle::channel::{Channel, ChannelOptions, Consumer, Delivery, Item, Producer, WhenFull};
use crosshandle::handle::ChannelHandle;
use crosshandle_conformance::pattern;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(crate) fn execute(state: &Arc<PeerState>, request: &Request<'_>) -> Option<Reply> {
    Some(match request.command {
        "channel" => create(state, request),
        "channel-handle" => handle(state, request),
        "open-channel" => open(state, request),
        "producer" => produce(state, request),
        "consumer" => consume(state, request),
        "send" => send(state, request),
        "receive" => receive(state, request),
        "reserve-slot" => reserve(state, request),
        "drop-items" => drop_items(state, request),
        _ => return None,
    })
}

/// A producer, and slots that it has reserved and does not publish.
pub(crate) struct PeerProducer {
    producer: Producer,
    reserved: Vec<crosshandle::channel::Slot>,
}

/// A consumer, and the items that it keeps.
pub(crate) struct PeerConsumer {
    consumer: Consumer,
    kept: Vec<Item>,
}

/// `channel NAME BYTES [depth=N] [producers=N] [consumers=N] [held=N] [mode=broadcast]
/// [full=drop] [context=C]`
fn create(state: &PeerState, request: &Request<'_>) -> Reply {
    let mut options = ChannelOptions::new(request.parsed(1)?);
    if let Some(depth) = request.parsed_option("depth")? {
        options = options.depth(depth);
    }
    if let Some(producers) = request.parsed_option("producers")? {
        options = options.producers(producers);
    }
    if let Some(consumers) = request.parsed_option("consumers")? {
        options = options.consumers(consumers);
    }
    if let Some(held) = request.parsed_option("held")? {
        options = options.held(held);
    }
    if request.option("mode") == Some("broadcast") {
        options = options.delivery(Delivery::Broadcast);
    }
    if request.option("full") == Some("drop") {
        options = options.when_full(WhenFull::DropOldest);
    }
    let channel = Channel::create(&state.context(request)?, options)?;
    state.put(request.word(0)?, Object::Channel(channel));
    done()
}

/// `channel-handle NAME [consumer=yes]` → handle
fn handle(state: &PeerState, request: &Request<'_>) -> Reply {
    let channel = state.channel(request.word(0)?)?;
    match request.option("consumer") {
        Some(_) => one(channel.consumer_handle()?),
        None => one(channel.handle()?),
    }
}

/// `open-channel NAME HANDLE [context=C]`
fn open(state: &PeerState, request: &Request<'_>) -> Reply {
    let handle: ChannelHandle = request.word(1)?.parse()?;
    let channel = Channel::open(&state.context(request)?, &handle)?;
    state.put(request.word(0)?, Object::Channel(channel));
    done()
}

/// `producer NAME CHANNEL`
fn produce(state: &PeerState, request: &Request<'_>) -> Reply {
    let producer = PeerProducer {
        producer: state.channel(request.word(1)?)?.producer()?,
        reserved: Vec::new(),
    };
    let object = Object::Producer(Arc::new(Mutex::new(producer)));
    state.put(request.word(0)?, object);
    done()
}

/// `consumer NAME CHANNEL`
fn consume(state: &PeerState, request: &Request<'_>) -> Reply {
    let consumer = PeerConsumer {
        consumer: state.channel(request.word(1)?)?.consumer()?,
        kept: Vec::new(),
    };
    let object = Object::Consumer(Arc::new(Mutex::new(consumer)));
    state.put(request.word(0)?, object);
    done()
}

/// `send PRODUCER SEED BYTES MS`: sends a pattern → number
///
/// `send PRODUCER BYTE BYTES MS queue=QUEUE`: a queue fills the slot with a byte → number
fn send(state: &PeerState, request: &Request<'_>) -> Reply {
    let producer = state.producer(request.word(0)?)?;
    let mut producer = producer.lock().unwrap_or_else(PoisonError::into_inner);
    let producer = &mut producer.producer;
    let (len, timeout) = (request.parsed(2)?, request.timeout(3)?);
    let number = match request.option("queue") {
        None => producer.send_timeout(&pattern(request.parsed(1)?, len), timeout)?,
        Some(queue) => {
            let queue = state.queue(queue)?;
            let mut slot = producer.reserve()?;
            slot.set_len(len)?;
            let range = slot.range()?.range(..len)?;
            queue.submit(Command::fill(range, &[request.parsed(1)?])?)?;
            let published = producer.publish_on(&queue, slot, timeout);
            published.map_err(crosshandle::Error::from)?
        }
    };
    one(number)
}

/// `receive CONSUMER SEED BYTES MS [keep=yes]`: receives a pattern → number
///
/// `receive CONSUMER BYTE BYTES MS queue=QUEUE to=MEMORY`: a queue copies the item to memory and
/// releases it → number
fn receive(state: &PeerState, request: &Request<'_>) -> Reply {
    let consumer = state.consumer(request.word(0)?)?;
    let mut consumer = consumer.lock().unwrap_or_else(PoisonError::into_inner);
    let (len, timeout): (usize, Duration) = (request.parsed(2)?, request.timeout(3)?);
    if let Some(queue) = request.option("queue") {
        let queue = state.queue(queue)?;
        let memory = state.memory(request.option("to").unwrap_or_default())?;
        let item = consumer.consumer.receive_on(&queue, timeout)?;
        let number = item.number();
        let copy = Command::copy(item.range()?, memory.range(..item.len())?)?;
        queue.submit(copy)?;
        item.release_on(&queue)?;
        return one(number);
    }
    let item = consumer.consumer.receive_timeout(timeout)?;
    if item.to_vec()? != pattern(request.parsed(1)?, len) {
        return Err(CommandError::usage(format!(
            "item {} has other contents",
            item.number()
        )));
    }
    let number = item.number();
    if request.option("keep").is_some() {
        consumer.kept.push(item);
    }
    one(number)
}

/// `drop-items CONSUMER`
fn drop_items(state: &PeerState, request: &Request<'_>) -> Reply {
    let consumer = state.consumer(request.word(0)?)?;
    let mut consumer = consumer.lock().unwrap_or_else(PoisonError::into_inner);
    consumer.kept.clear();
    done()
}

/// `reserve-slot PRODUCER`
fn reserve(state: &PeerState, request: &Request<'_>) -> Reply {
    let producer = state.producer(request.word(0)?)?;
    let mut producer = producer.lock().unwrap_or_else(PoisonError::into_inner);
    let slot = producer.producer.reserve()?;
    producer.reserved.push(slot);
    done()
}
