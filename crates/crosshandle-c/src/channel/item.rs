//! Items that a consumer has received.

use super::crosshandle_array;
use crate::boundary::{buffer, entry, place, put};
use crate::error::{Failure, crosshandle_result};
use crate::memory::crosshandle_memory;
use crate::object::{close, get, object};
use crate::queue::crosshandle_queue;
use crosshandle::Command;
use crosshandle::channel::Item;
use std::ffi::c_void;

/// A received item, which the program reads in place until it closes it. Any thread may use it.
pub struct crosshandle_item {}
object!(crosshandle_item, Item, 15, "item");

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
/// Errors: if `queue` is not an open queue, the item stays open. After an error of
/// `crosshandle_queue_signal`, the item is closed, and its slot is free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_item_release_on(
    item: *mut crosshandle_item,
    queue: *const crosshandle_queue,
) -> crosshandle_result {
    entry! {
        let queue = get(queue)?;
        let item = close(item)?.ok_or(Failure::NULL)?;
        Ok(item.release_on(queue)?)
    }
}

/// Closes an item, and frees its slot. Closing null does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_item_close(item: *mut crosshandle_item) -> crosshandle_result {
    entry!(close(item).map(drop))
}
