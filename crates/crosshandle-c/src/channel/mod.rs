//! Channels: creating and opening them. The modules below have their members and items.

mod consumer;
mod item;
mod producer;
mod slot;

pub use consumer::*;
pub use item::*;
pub use producer::*;
pub use slot::*;

use crate::boundary::{entry, entry_object, given, optional_text, place, text, timeout};
use crate::context::crosshandle_context;
use crate::error::{Failure, Result, crosshandle_result};
use crate::handle::crosshandle_channel_handle;
use crate::holder::{crosshandle_hold_options, crosshandle_holder, read_hold_options};
use crate::memory::access;
use crate::object::{close, get, object};
use crosshandle::Access;
use crosshandle::channel::{
    ArrayLayout, Channel, ChannelOptions, Delivery, MAX_DIMENSIONS, USER_BYTES, WhenFull,
};
use std::ffi::c_char;

/// A ring of slots in shared memory, through which processes send items. Any thread may use it.
pub struct crosshandle_channel {}
object!(crosshandle_channel, Channel, 11, "channel");

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
    /// The number of items that a consumer may keep. 0 is the default: 4 on the host, and on other
    /// devices the depth, but at least 4 and at most 15.
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
    entry_object! { channel;
        let options = read_options(options)?;
        Channel::create(get(context)?, options)?
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
    entry_object! { channel;
        let handle = crosshandle_channel_handle::read(handle)?;
        Channel::open_timeout(get(context)?, &handle, timeout(timeout_ns))?
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
    entry_object! { channel;
        let access = self::access(access)?;
        Channel::open_name(get(context)?, get(holder)?, text(name)?, access)?
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
