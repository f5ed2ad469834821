//! Consumers: receiving items.

use super::crosshandle_channel;
use super::item::crosshandle_item;
use crate::boundary::{entry, entry_object, entry_value, timeout};
use crate::error::crosshandle_result;
use crate::object::{Exclusive, close, get, object};
use crate::queue::crosshandle_queue;
use crosshandle::Error;
use crosshandle::channel::Consumer;
use std::os::fd::AsRawFd;

/// A process's role of receiving items. One thread at a time uses it; a call during another
/// thread's call returns `CROSSHANDLE_IN_USE`.
pub struct crosshandle_consumer {}
object!(crosshandle_consumer, Exclusive<Consumer>, 13, "consumer");

/// Joins the channel as a consumer. A consumer of a broadcast receives items that are published
/// from now on.
///
/// Errors: `CROSSHANDLE_EXHAUSTED` if the channel has its maximum number of consumers. The caller
/// closes the consumer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_consumer_create(
    channel: *const crosshandle_channel,
    consumer: *mut *mut crosshandle_consumer,
) -> crosshandle_result {
    entry_object! { consumer;
        Exclusive::new(get(channel)?.consumer()?)
    }
}

/// Receives the next item, and waits for it for at most `timeout_ns` nanoseconds.
///
/// Errors:
/// - `CROSSHANDLE_TIMED_OUT`.
/// - `CROSSHANDLE_CHANNEL_CLOSED` if all producers have left and no item is left.
/// - `CROSSHANDLE_PEER_DIED` if no item is left and one of the producers died.
/// - `CROSSHANDLE_EXHAUSTED` if the consumer has its maximum number of items.
/// - `CROSSHANDLE_PROTOCOL` for an invalid item, which is skipped.
/// - `CROSSHANDLE_COMMAND_FAILED` for an item whose commands failed, which is skipped.
///
/// The caller closes the item.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_consumer_receive(
    consumer: *const crosshandle_consumer,
    timeout_ns: u64,
    item: *mut *mut crosshandle_item,
) -> crosshandle_result {
    entry_object! { item;
        let mut consumer = get(consumer)?.enter()?;
        match timeout_ns {
            0 => consumer.try_receive()?.ok_or(Error::TimedOut("receiving an item"))?,
            _ => consumer.receive_timeout(timeout(timeout_ns))?,
        }
    }
}

/// Receives the newest waiting item, and drops the older ones. Waits for at most `timeout_ns`
/// nanoseconds if no item is waiting.
///
/// Errors: those of `crosshandle_consumer_receive`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_consumer_receive_latest(
    consumer: *const crosshandle_consumer,
    timeout_ns: u64,
    item: *mut *mut crosshandle_item,
) -> crosshandle_result {
    entry_object! { item;
        get(consumer)?.enter()?.receive_latest(timeout(timeout_ns))?
    }
}

/// Receives the next item, and makes all later work of the queue wait until the item is complete.
/// Waits for a published item for at most `timeout_ns` nanoseconds, but not for the commands that
/// produce it.
///
/// Errors: those of `crosshandle_consumer_receive` and `crosshandle_queue_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_consumer_receive_on(
    consumer: *const crosshandle_consumer,
    queue: *const crosshandle_queue,
    timeout_ns: u64,
    item: *mut *mut crosshandle_item,
) -> crosshandle_result {
    entry_object! { item;
        let mut consumer = get(consumer)?.enter()?;
        consumer.receive_on(get(queue)?, timeout(timeout_ns))?
    }
}

/// Returns a descriptor for `poll`, `epoll` and similar calls. It is readable when an item may be
/// waiting. The program then receives with a timeout of 0 until that times out, which makes the
/// descriptor unreadable again. The descriptor is valid until the consumer is closed. Returns -1 on
/// an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_consumer_fd(consumer: *const crosshandle_consumer) -> i32 {
    entry_value!(or -1; Ok(get(consumer)?.enter()?.descriptor()?.as_raw_fd()))
}

/// Returns the number of items of a broadcast that were replaced before this consumer received
/// them. Returns 0 on an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_consumer_lost(consumer: *const crosshandle_consumer) -> u64 {
    entry_value!(or 0; Ok(get(consumer)?.enter()?.lost()))
}

/// Leaves the channel. Its items stay usable. Closing null does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_consumer_close(
    consumer: *mut crosshandle_consumer,
) -> crosshandle_result {
    entry!(close(consumer).map(drop))
}
