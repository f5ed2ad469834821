//! Channels, their producers and consumers, and the slots and items in their hands.

use crate::boundary::{buffer, entry, entry_value, given, list, optional_text, place, put};
use crate::boundary::{text, timeout};
use crate::context::crosshandle_context;
use crate::error::{Failure, Result, crosshandle_result};
use crate::handle::crosshandle_channel_handle;
use crate::holder::{crosshandle_hold_options, crosshandle_holder, read_hold_options};
use crate::memory::{access, crosshandle_memory};
use crate::object::{Entered, Exclusive, close, get, object, open};
use crate::queue::crosshandle_queue;
use crosshandle::channel::{
    ArrayLayout, Channel, ChannelOptions, Consumer, Delivery, Item, MAX_DIMENSIONS, Producer, Slot,
    USER_BYTES, Unpublished, WhenFull,
};
use crosshandle::{Access, Command, Error};
use std::ffi::{c_char, c_void};
use std::os::fd::AsRawFd;
use std::ptr;

/// A ring of slots in shared memory, through which processes send items. Any thread may use it.
pub struct crosshandle_channel {}
object!(crosshandle_channel, Channel, 11, "channel");

/// A process's role of sending items. One thread at a time uses it; a call during another thread's
/// call returns `CROSSHANDLE_IN_USE`.
pub struct crosshandle_producer {}
object!(crosshandle_producer, Exclusive<Producer>, 12, "producer");

/// A process's role of receiving items. One thread at a time uses it; a call during another
/// thread's call returns `CROSSHANDLE_IN_USE`.
pub struct crosshandle_consumer {}
object!(crosshandle_consumer, Exclusive<Consumer>, 13, "consumer");

/// A reserved slot, which the program writes until it is published. One thread at a time uses it.
pub struct crosshandle_slot {}
object!(crosshandle_slot, Exclusive<Option<Slot>>, 14, "slot");

/// A received item, which the program reads in place until it closes it. Any thread may use it.
pub struct crosshandle_item {}
object!(crosshandle_item, Item, 15, "item");

/// Each item goes to one consumer: a value of `delivery`.
pub const CROSSHANDLE_QUEUE: u32 = 0;
/// Each item goes to every consumer: a value of `delivery`.
pub const CROSSHANDLE_BROADCAST: u32 = 1;

/// A producer waits while the channel is full: a value of `when_full`.
pub const CROSSHANDLE_WAIT: u32 = 0;
/// A producer replaces the oldest item of a full channel: a value of `when_full`.
pub const CROSSHANDLE_DROP_OLDEST: u32 = 1;

/// Maximum number of dimensions of an array in a channel.
pub const CROSSHANDLE_MAX_DIMENSIONS: usize = 8;
/// Maximum number of the program's own bytes that an item carries.
pub const CROSSHANDLE_USER_BYTES: usize = 64;

const _: () = {
    assert!(CROSSHANDLE_MAX_DIMENSIONS == MAX_DIMENSIONS);
    assert!(CROSSHANDLE_USER_BYTES == USER_BYTES);
};

/// The element type and the shape of an array in an item. Its elements are dense, and the last
/// dimension varies fastest.
#[repr(C)]
pub struct crosshandle_array {
    /// DLPack's code of the element type (`DLDataTypeCode`): 0 for signed and 1 for unsigned
    /// integers, 2 for floating-point numbers.
    pub type_code: u8,
    /// The number of bits of an element.
    pub type_bits: u8,
    /// The number of dimensions.
    pub dimensions: u32,
    /// The number of elements in each dimension.
    pub shape: [u64; CROSSHANDLE_MAX_DIMENSIONS],
}

impl crosshandle_array {
    fn read(&self) -> Result<ArrayLayout> {
        let shape = self.shape.get(..self.dimensions as usize);
        let shape = shape.ok_or(Failure::invalid("an array has at most 8 dimensions"))?;
        Ok(ArrayLayout::new(self.type_code, self.type_bits, shape)?)
    }

    fn new(array: &ArrayLayout) -> Self {
        let mut shape = [0; CROSSHANDLE_MAX_DIMENSIONS];
        shape[..array.shape().len()].copy_from_slice(array.shape());
        Self {
            type_code: array.code(),
            type_bits: array.bits(),
            dimensions: array.shape().len() as u32,
            shape,
        }
    }
}

/// The options of a channel. `size`, and `slot_size` or `array`, must be set. Zeros elsewhere are
/// the defaults.
#[repr(C)]
pub struct crosshandle_channel_options {
    /// The size of this structure in bytes. Later versions of the structure are larger.
    pub size: usize,
    /// The size of a slot in bytes, which is the maximum length of an item.
    pub slot_size: usize,
    /// The type and shape of all items, or null for items of any kind. It determines the size of a
    /// slot.
    pub array: *const crosshandle_array,
    /// How many items can wait to be received, a power of two. 0 is the default of 8.
    pub depth: u32,
    /// Which consumers receive an item: `CROSSHANDLE_QUEUE` or `CROSSHANDLE_BROADCAST`.
    pub delivery: u32,
    /// What a producer does while the channel is full: `CROSSHANDLE_WAIT` or
    /// `CROSSHANDLE_DROP_OLDEST`.
    pub when_full: u32,
    /// Maximum number of producers. 0 is the default of 1.
    pub producers: u8,
    /// Maximum number of consumers. 0 is the default of 1.
    pub consumers: u8,
    /// How many slots a producer may have reserved. 0 is the default of 2.
    pub reserved: u8,
    /// How many items a consumer may keep. 0 is the default of 4.
    pub held: u8,
    /// Whether consumers wait for the next producer when all producers have left or died.
    pub awaits_producers: bool,
    /// A name that tools show, or null.
    pub name: *const c_char,
}

/// The state of a channel.
#[repr(C)]
pub struct crosshandle_channel_info {
    /// The size of a slot in bytes.
    pub slot_size: usize,
    /// How many items can wait to be received.
    pub depth: u32,
    /// `CROSSHANDLE_QUEUE` or `CROSSHANDLE_BROADCAST`.
    pub delivery: u32,
    /// `CROSSHANDLE_WAIT` or `CROSSHANDLE_DROP_OLDEST`.
    pub when_full: u32,
    /// The number of producers that are alive.
    pub producers: u32,
    /// The number of consumers that are alive.
    pub consumers: u32,
    /// The number of items that were published so far.
    pub published: u64,
}

/// A received item.
#[repr(C)]
pub struct crosshandle_item_info {
    /// The address of the contents: a device address, or a pointer if the channel is on the host.
    /// The program must not write there.
    pub data: *const c_void,
    /// The length of the contents in bytes.
    pub size: usize,
    /// The number of the item. The first item of a channel has the number 0.
    pub number: u64,
    /// The time of the publication, in nanoseconds of the clock `CLOCK_MONOTONIC`.
    pub time_ns: u64,
}

unsafe fn read_options(options: *const crosshandle_channel_options) -> Result<ChannelOptions> {
    // SAFETY: promised by the caller.
    let options = unsafe { given(options) }?;
    if options.size != size_of::<crosshandle_channel_options>() {
        return Err(Failure::invalid(
            "set `size` to the size of crosshandle_channel_options",
        ));
    }
    // SAFETY: promised by the caller.
    let (array, name) = unsafe { (options.array.as_ref(), optional_text(options.name)?) };
    let delivery = match options.delivery {
        CROSSHANDLE_QUEUE => Delivery::Queue,
        CROSSHANDLE_BROADCAST => Delivery::Broadcast,
        _ => {
            return Err(Failure::invalid(
                "`delivery` is neither CROSSHANDLE_QUEUE nor CROSSHANDLE_BROADCAST",
            ));
        }
    };
    let when_full = match options.when_full {
        CROSSHANDLE_WAIT => WhenFull::Wait,
        CROSSHANDLE_DROP_OLDEST => WhenFull::DropOldest,
        _ => {
            return Err(Failure::invalid(
                "`when_full` is neither CROSSHANDLE_WAIT nor CROSSHANDLE_DROP_OLDEST",
            ));
        }
    };
    let mut chosen = match array {
        Some(array) => ChannelOptions::of_arrays(array.read()?),
        None => ChannelOptions::new(options.slot_size),
    };
    chosen = chosen
        .delivery(delivery)
        .when_full(when_full)
        .awaits_producers(options.awaits_producers);
    if options.depth != 0 {
        chosen = chosen.depth(options.depth);
    }
    if options.producers != 0 {
        chosen = chosen.producers(options.producers);
    }
    if options.consumers != 0 {
        chosen = chosen.consumers(options.consumers);
    }
    if options.reserved != 0 {
        chosen = chosen.reserved(options.reserved);
    }
    if options.held != 0 {
        chosen = chosen.held(options.held);
    }
    if let Some(name) = name {
        chosen = chosen.name(name);
    }
    Ok(chosen)
}

/// Creates a channel whose slots are in the memory of the context's device.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT` for options that exceed a limit, and
/// `CROSSHANDLE_EXHAUSTED` if memory is used up. The caller closes the channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_channel_create(
    context: *const crosshandle_context,
    options: *const crosshandle_channel_options,
    channel: *mut *mut crosshandle_channel,
) -> crosshandle_result {
    entry! {
        let channel = place(channel)?;
        let options = read_options(options)?;
        channel.write(open(Channel::create(get(context)?, options)?));
        Ok(())
    }
}

/// Opens a channel of another process by its handle. The call waits for the channel's creator for
/// at most `timeout_ns` nanoseconds.
///
/// Errors: those of `crosshandle_memory_open`, with `CROSSHANDLE_BAD_HANDLE` for the bytes of a
/// memory handle. `CROSSHANDLE_PROTOCOL` if the exporter's memory does not contain a channel. The
/// caller closes the channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_channel_open(
    context: *const crosshandle_context,
    handle: *const crosshandle_channel_handle,
    timeout_ns: u64,
    channel: *mut *mut crosshandle_channel,
) -> crosshandle_result {
    entry! {
        let channel = place(channel)?;
        let handle = crosshandle_channel_handle::read(handle)?;
        let opened = Channel::open_timeout(get(context)?, &handle, timeout(timeout_ns))?;
        channel.write(open(opened));
        Ok(())
    }
}

/// Opens a channel under the name by which a holder keeps it. With `CROSSHANDLE_READ_ONLY`, this
/// process can only be a consumer.
///
/// Errors: those of `crosshandle_holder_open` and `crosshandle_channel_open`. The caller closes the
/// channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_channel_open_name(
    context: *const crosshandle_context,
    holder: *const crosshandle_holder,
    name: *const c_char,
    access: u32,
    channel: *mut *mut crosshandle_channel,
) -> crosshandle_result {
    entry! {
        let channel = place(channel)?;
        let access = self::access(access)?;
        let opened = Channel::open_name(get(context)?, get(holder)?, text(name)?, access)?;
        channel.write(open(opened));
        Ok(())
    }
}

/// Returns a handle to the channel. With `CROSSHANDLE_READ_WRITE`, it grants both roles. With
/// `CROSSHANDLE_READ_ONLY`, it grants only the role of consumers.
///
/// A process that has opened the channel returns the handle that it was opened with. Errors:
/// `CROSSHANDLE_PERMISSION_DENIED` if that handle grants only the role of consumers, and
/// `CROSSHANDLE_INVALID_ARGUMENT` if only the creator of the channel can make the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_channel_get_handle(
    channel: *const crosshandle_channel,
    access: u32,
    handle: *mut crosshandle_channel_handle,
) -> crosshandle_result {
    entry! {
        let handle = place(handle)?;
        let channel = get(channel)?;
        let made = match self::access(access)? {
            Access::ReadWrite => channel.handle()?,
            Access::ReadOnly => channel.consumer_handle()?,
        };
        handle.write(crosshandle_channel_handle::new(&made));
        Ok(())
    }
}

/// Hands the channel over to a holder under a name. The channel then exists as long as the name,
/// even if all its processes end. `options` may be null for the defaults.
///
/// Errors: those of `crosshandle_holder_hand_over`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_channel_hand_over(
    channel: *const crosshandle_channel,
    holder: *const crosshandle_holder,
    name: *const c_char,
    options: *const crosshandle_hold_options,
) -> crosshandle_result {
    entry! {
        let options = read_hold_options(options)?;
        get(channel)?.hand_over(get(holder)?, text(name)?, options)?;
        Ok(())
    }
}

/// Returns the state of the channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_channel_get_info(
    channel: *const crosshandle_channel,
    info: *mut crosshandle_channel_info,
) -> crosshandle_result {
    entry! {
        let info = place(info)?;
        let channel = get(channel)?;
        let (producers, consumers) = channel.members();
        info.write(crosshandle_channel_info {
            slot_size: channel.slot_size(),
            depth: channel.depth(),
            delivery: match channel.delivery() {
                Delivery::Queue => CROSSHANDLE_QUEUE,
                Delivery::Broadcast => CROSSHANDLE_BROADCAST,
            },
            when_full: match channel.when_full() {
                WhenFull::Wait => CROSSHANDLE_WAIT,
                WhenFull::DropOldest => CROSSHANDLE_DROP_OLDEST,
            },
            producers: producers as u32,
            consumers: consumers as u32,
            published: channel.published(),
        });
        Ok(())
    }
}

/// Closes the channel object. Its producers, consumers and items stay usable. Closing null does
/// nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_channel_close(
    channel: *mut crosshandle_channel,
) -> crosshandle_result {
    entry!(close(channel).map(drop))
}

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
    entry! {
        let producer = place(producer)?;
        producer.write(open(Exclusive::new(get(channel)?.producer()?)));
        Ok(())
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
    entry! {
        let slot = place(slot)?;
        let reserved = get(producer)?.enter()?.try_reserve()?;
        slot.write(open(Exclusive::new(Some(reserved))));
        Ok(())
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

/// The object of a slot whose slot is being published.
struct TakenSlot<'a> {
    object: *mut crosshandle_slot,
    place: Entered<'a, Option<Slot>>,
}

impl TakenSlot<'_> {
    /// Takes the slot out of its object.
    ///
    /// # Safety
    /// As for [`get`], until [`finish`](Self::finish) has returned.
    unsafe fn take(object: *mut crosshandle_slot) -> Result<(Self, Slot)> {
        // SAFETY: promised by the caller.
        let mut place = unsafe { get(object.cast_const()) }?.enter()?;
        let slot = place.take().ok_or(Failure::closed("slot"))?;
        Ok((Self { object, place }, slot))
    }

    /// Closes the object of a published slot. After an error the object has the slot again.
    fn finish(mut self, published: std::result::Result<u64, Unpublished>) -> Result<u64> {
        match published {
            Ok(number) => {
                drop(self.place);
                // SAFETY: promised by the caller of `take`.
                unsafe { close(self.object) }?;
                Ok(number)
            }
            Err(unpublished) => {
                *self.place = Some(unpublished.slot);
                Err(unpublished.error.into())
            }
        }
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

/// Runs a function on the slot of an object.
unsafe fn with_slot<T>(
    object: *const crosshandle_slot,
    function: impl FnOnce(&mut Slot) -> Result<T>,
) -> Result<T> {
    // SAFETY: promised by the caller.
    let mut place = unsafe { get(object) }?.enter()?;
    function(place.as_mut().ok_or(Failure::closed("slot"))?)
}

/// Returns the address of the slot: a device address, or a pointer if the channel is on the host.
/// Returns null on an error. The address is valid until the slot is published or closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_slot_data(slot: *const crosshandle_slot) -> *mut c_void {
    entry_value!(or ptr::null_mut(); with_slot(slot, |slot| Ok(slot.as_ptr().cast())))
}

/// Returns the size of the slot in bytes. Returns 0 on an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_slot_size(slot: *const crosshandle_slot) -> usize {
    entry_value!(or 0; with_slot(slot, |slot| Ok(slot.size())))
}

/// Sets the length of the item in bytes. The default is the whole slot, or the channel's array.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT` for more bytes than the slot has, or for another length
/// than that of the item's array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_slot_set_length(
    slot: *const crosshandle_slot,
    length: usize,
) -> crosshandle_result {
    entry!(with_slot(slot, |slot| Ok(slot.set_len(length)?)))
}

/// Makes the item an array, and sets its length.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT` for an array that does not fit into the slot, and for
/// another array than the one that the channel was created for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_slot_set_array(
    slot: *const crosshandle_slot,
    array: *const crosshandle_array,
) -> crosshandle_result {
    entry! {
        let array = given(array)?.read()?;
        with_slot(slot, |slot| Ok(slot.set_array(array)?))
    }
}

/// Sets `size` bytes that the item carries in addition to its contents, at most
/// `CROSSHANDLE_USER_BYTES`.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT` for more bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_slot_set_user(
    slot: *const crosshandle_slot,
    bytes: *const c_void,
    size: usize,
) -> crosshandle_result {
    entry! {
        let bytes = list(bytes.cast::<u8>(), size)?;
        with_slot(slot, |slot| Ok(slot.set_user(bytes)?))
    }
}

/// Copies `size` bytes from `from` to byte `offset` of the slot. If the host cannot access the
/// slot, a queue of the device copies them, and the call waits for it without a timeout.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT` if the range is not inside the slot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_slot_write(
    slot: *const crosshandle_slot,
    offset: usize,
    from: *const c_void,
    size: usize,
) -> crosshandle_result {
    entry! {
        let bytes = list(from.cast::<u8>(), size)?;
        with_slot(slot, |slot| Ok(slot.write(offset, bytes)?))
    }
}

/// Copies `size` bytes from byte `source_offset` of memory to byte `offset` of the slot, after
/// earlier work of the queue. Publish the slot with `crosshandle_producer_publish_on` then.
///
/// Errors: those of `crosshandle_queue_copy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_queue_copy_to_slot(
    queue: *const crosshandle_queue,
    slot: *const crosshandle_slot,
    offset: usize,
    source: *const crosshandle_memory,
    source_offset: usize,
    size: usize,
) -> crosshandle_result {
    entry! {
        let from = get(source)?.range(source_offset..source_offset.saturating_add(size))?;
        let to = with_slot(slot, |slot| {
            Ok(slot.range()?.range(offset..offset.saturating_add(size))?)
        })?;
        Ok(get(queue)?.submit(Command::copy(from, to)?)?)
    }
}

/// Returns the slot to its producer without an item. Closing null does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_slot_close(slot: *mut crosshandle_slot) -> crosshandle_result {
    entry!(close(slot).map(drop))
}

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
    entry! {
        let consumer = place(consumer)?;
        consumer.write(open(Exclusive::new(get(channel)?.consumer()?)));
        Ok(())
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
    entry! {
        let item = place(item)?;
        let mut consumer = get(consumer)?.enter()?;
        let received = match timeout_ns {
            0 => consumer.try_receive()?.ok_or(Error::TimedOut("receiving an item"))?,
            _ => consumer.receive_timeout(timeout(timeout_ns))?,
        };
        item.write(open(received));
        Ok(())
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
    entry! {
        let item = place(item)?;
        let received = get(consumer)?.enter()?.receive_latest(timeout(timeout_ns))?;
        item.write(open(received));
        Ok(())
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
    entry! {
        let item = place(item)?;
        let mut consumer = get(consumer)?.enter()?;
        item.write(open(consumer.receive_on(get(queue)?, timeout(timeout_ns))?));
        Ok(())
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

/// Returns the address, length, number and time of an item. The address is valid until the item is
/// closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_item_get_info(
    item: *const crosshandle_item,
    info: *mut crosshandle_item_info,
) -> crosshandle_result {
    entry! {
        let info = place(info)?;
        let item = get(item)?;
        info.write(crosshandle_item_info {
            data: item.as_ptr().cast(),
            size: item.len(),
            number: item.number(),
            time_ns: item.time(),
        });
        Ok(())
    }
}

/// Returns the type and the shape of an item that is an array.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT` for an item that is not an array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_item_get_array(
    item: *const crosshandle_item,
    array: *mut crosshandle_array,
) -> crosshandle_result {
    entry! {
        let array = place(array)?;
        let layout = get(item)?.array();
        let layout = layout.ok_or(Failure::invalid("the item is not an array"))?;
        array.write(crosshandle_array::new(layout));
        Ok(())
    }
}

/// Copies the bytes that the producer has added with `crosshandle_slot_set_user`, at most `size` of
/// them. Stores how many there are in `length` unless that is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_item_get_user(
    item: *const crosshandle_item,
    bytes: *mut c_void,
    size: usize,
    length: *mut usize,
) -> crosshandle_result {
    entry! {
        let user = get(item)?.user()?;
        let copied = size.min(user.len());
        buffer(bytes.cast(), copied)?.copy_from_slice(&user[..copied]);
        put(length, user.len());
        Ok(())
    }
}

/// Copies `size` bytes from byte `offset` of the item to `to`. If the host cannot access the item,
/// a queue of the device copies them, and the call waits for it without a timeout.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT` if the range is not inside the item, and those of the
/// driver, after which the bytes at `to` are arbitrary.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_item_read(
    item: *const crosshandle_item,
    offset: usize,
    to: *mut c_void,
    size: usize,
) -> crosshandle_result {
    entry! {
        let item = get(item)?;
        if offset.checked_add(size).is_none_or(|end| end > item.len()) {
            return Err(Failure::invalid("the range is not inside the item"));
        }
        Ok(item.read(offset, buffer(to.cast(), size)?)?)
    }
}

/// Copies `size` bytes from byte `offset` of the item to byte `destination_offset` of memory, after
/// earlier work of the queue. Release the item with `crosshandle_item_release_on` then.
///
/// Errors: those of `crosshandle_queue_copy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_queue_copy_from_item(
    queue: *const crosshandle_queue,
    destination: *const crosshandle_memory,
    destination_offset: usize,
    item: *const crosshandle_item,
    offset: usize,
    size: usize,
) -> crosshandle_result {
    entry! {
        let end = destination_offset.saturating_add(size);
        let to = get(destination)?.range(destination_offset..end)?;
        let from = get(item)?.range()?.range(offset..offset.saturating_add(size))?;
        Ok(get(queue)?.submit(Command::copy(from, to)?)?)
    }
}

/// Closes an item, and frees its slot when all earlier work of the queue is complete.
///
/// Errors: those of `crosshandle_queue_signal`. The item is closed even then, and its slot is free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_item_release_on(
    item: *mut crosshandle_item,
    queue: *const crosshandle_queue,
) -> crosshandle_result {
    entry! {
        let item = close(item)?.ok_or(Failure::NULL)?;
        Ok(item.release_on(get(queue)?)?)
    }
}

/// Closes an item, and frees its slot. Closing null does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_item_close(item: *mut crosshandle_item) -> crosshandle_result {
    entry!(close(item).map(drop))
}
