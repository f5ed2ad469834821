//! Slots that a producer has reserved.

use super::crosshandle_array;
use crate::boundary::{entry, entry_value, given, list};
use crate::error::{Failure, Result, crosshandle_result};
use crate::memory::crosshandle_memory;
use crate::object::{Entered, Exclusive, close, get, object};
use crate::queue::crosshandle_queue;
use crosshandle::Command;
use crosshandle::channel::{Slot, Unpublished};
use std::ffi::c_void;
use std::ptr;

/// A reserved slot, which the program writes until it is published. One thread at a time uses it.
pub struct crosshandle_slot {}
object!(crosshandle_slot, Exclusive<Option<Slot>>, 14, "slot");

/// The object of a slot whose slot is being published.
pub(super) struct TakenSlot<'a> {
    object: *mut crosshandle_slot,
    place: Entered<'a, Option<Slot>>,
}

impl TakenSlot<'_> {
    /// Takes the slot out of its object.
    ///
    /// # Safety
    /// As for [`get`], until [`finish`](Self::finish) has returned.
    pub(super) unsafe fn take(object: *mut crosshandle_slot) -> Result<(Self, Slot)> {
        // SAFETY: promised by the caller.
        let mut place = unsafe { get(object.cast_const()) }?.enter()?;
        let slot = place.take().ok_or(Failure::closed("slot"))?;
        Ok((Self { object, place }, slot))
    }

    /// Closes the object of a published slot. After an error the object has the slot again.
    pub(super) fn finish(
        mut self,
        published: std::result::Result<u64, Unpublished>,
    ) -> Result<u64> {
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
