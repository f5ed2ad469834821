//! Producers: reserving slots, and publishing them.

use super::crosshandle_channel;
use super::slot::{TakenSlot, crosshandle_slot};
use crate::boundary::{entry, entry_object, list, put, timeout};
use crate::error::crosshandle_result;
use crate::object::{Exclusive, close, get, object};
use crate::queue::crosshandle_queue;
use crosshandle::channel::Producer;
use std::ffi::c_void;

/// A process's role of sending items. One thread at a time uses it; a call during another thread's
/// call returns `CROSSHANDLE_IN_USE`.
pub struct crosshandle_producer {}
object!(crosshandle_producer, Exclusive<Producer>, 12, "producer");

/// Joins the channel as a producer.
///
/// Errors: `CROSSHANDLE_EXHAUSTED` if the channel has its maximum number of producers, and
/// `CROSSHANDLE_PERMISSION_DENIED` if the handle granted only the role of consumers. The caller
/// closes the producer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_producer_create(
    channel: *const crosshandle_channel,
    producer: *mut *mut crosshandle_producer,
) -> crosshandle_result {
    entry_object! { producer;
        Exclusive::new(get(channel)?.producer()?)
    }
}

/// Reserves a slot for an item. This call does not wait.
///
/// Errors: `CROSSHANDLE_EXHAUSTED` if the producer has its maximum number of reserved slots, and
/// `CROSSHANDLE_TIMED_OUT` if queues still write all free slots. The caller publishes or closes the
/// slot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_producer_reserve(
    producer: *const crosshandle_producer,
    slot: *mut *mut crosshandle_slot,
) -> crosshandle_result {
    entry_object! { slot;
        let reserved = get(producer)?.enter()?.try_reserve()?;
        Exclusive::new(Some(reserved))
    }
}

/// Publishes the item in a slot, and closes the slot. Waits for room in a full channel for at most
/// `timeout_ns` nanoseconds. Stores the number of the item in `number` unless that is null.
///
/// Errors: `CROSSHANDLE_TIMED_OUT`, and `CROSSHANDLE_INVALID_ARGUMENT` for a slot of another
/// producer. After an error the program still has the slot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_producer_publish(
    producer: *const crosshandle_producer,
    slot: *mut crosshandle_slot,
    timeout_ns: u64,
    number: *mut u64,
) -> crosshandle_result {
    entry! {
        let mut producer = get(producer)?.enter()?;
        let (object, taken) = TakenSlot::take(slot)?;
        let published = match timeout_ns {
            0 => producer.try_publish(taken),
            _ => producer.publish_timeout(taken, timeout(timeout_ns)),
        };
        put(number, object.finish(published)?);
        Ok(())
    }
}

/// Publishes the item in a slot as `crosshandle_producer_publish` does, while a queue may still
/// write it. The item is complete when all earlier work of the queue is complete. This call does
/// not wait for that.
///
/// Errors: those of `crosshandle_producer_publish` and `crosshandle_queue_signal`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_producer_publish_on(
    producer: *const crosshandle_producer,
    queue: *const crosshandle_queue,
    slot: *mut crosshandle_slot,
    timeout_ns: u64,
    number: *mut u64,
) -> crosshandle_result {
    entry! {
        let mut producer = get(producer)?.enter()?;
        let queue = get(queue)?;
        let (object, taken) = TakenSlot::take(slot)?;
        let published = producer.publish_on(queue, taken, timeout(timeout_ns));
        put(number, object.finish(published)?);
        Ok(())
    }
}

/// Copies `size` bytes into a slot, and publishes it. Waits for room in a full channel for at most
/// `timeout_ns` nanoseconds. Stores the number of the item in `number` unless that is null.
///
/// Errors: `CROSSHANDLE_TIMED_OUT`, and `CROSSHANDLE_INVALID_ARGUMENT` for more bytes than a slot
/// has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_producer_send(
    producer: *const crosshandle_producer,
    bytes: *const c_void,
    size: usize,
    timeout_ns: u64,
    number: *mut u64,
) -> crosshandle_result {
    entry! {
        let mut producer = get(producer)?.enter()?;
        let bytes = list(bytes.cast::<u8>(), size)?;
        let sent = match timeout_ns {
            0 => producer.try_send(bytes)?,
            _ => producer.send_timeout(bytes, timeout(timeout_ns))?,
        };
        put(number, sent);
        Ok(())
    }
}

/// Leaves the channel when the producer's slots are closed too. Closing null does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_producer_close(
    producer: *mut crosshandle_producer,
) -> crosshandle_result {
    entry!(close(producer).map(drop))
}
