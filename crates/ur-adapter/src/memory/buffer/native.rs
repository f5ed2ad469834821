//! Native handles of buffers. The native handle is the buffer's address on the device, which other
//! libraries above the driver can use.

use super::storage::Storage;
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::abi::native::ownership;
use crate::context::Context;
use crosshandle::{Error, Memory};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use unified_runtime_sys::{ur_native_handle_t, ur_result_t};

/// Storages whose native handles this adapter has given out.
static GIVEN: Lock<Vec<Weak<Storage>>> = Lock::new(Vec::new());

/// Returns the native handle of the memory at an offset. The handle is valid as long as an object
/// keeps the memory alive.
pub(super) fn handle(storage: &Arc<Storage>, offset: usize) -> ur_native_handle_t {
    if !storage.is_given.swap(true, Ordering::Relaxed) {
        let mut given = GIVEN.lock();
        if given.len() == given.capacity() {
            given.retain(|storage| storage.strong_count() > 0);
        }
        given.push(Arc::downgrade(storage));
    }
    storage.address() + offset
}

/// Returns the storage that a native handle points into, and the offset. The storage belongs to a
/// buffer, or is made from memory that this adapter or the driver allocated in the context.
///
/// If `is_owned` is true, the user does not have to free such an allocation any more.
///
/// # Errors
/// Returns `INVALID_ARGUMENT` for any other handle, and `INVALID_MEM_OBJECT` if an owned handle
/// points into the middle of an allocation.
///
/// # Safety
/// The caller must ensure that the native handle is that of a buffer, the address of memory of the
/// context or the driver, or an address without memory. The owner of the memory must keep it as
/// long as the storage uses it.
pub(super) unsafe fn find(
    context: &Context,
    native: ur_native_handle_t,
    is_owned: bool,
) -> Result<(Arc<Storage>, usize)> {
    // The storages are collected first, because dropping the last reference to one takes time and
    // must not happen under the lock.
    let alive: Vec<_> = GIVEN.lock().iter().filter_map(Weak::upgrade).collect();
    let nearest = alive
        .into_iter()
        .filter_map(|storage| {
            let offset = native.checked_sub(storage.address())?;
            (offset < storage.len()).then_some((storage, offset))
        })
        .min_by_key(|(_, offset)| *offset);
    if let Some(found) = nearest {
        return Ok(found);
    }
    let Some(adopted) = adopt(context, native) else {
        // SAFETY: the caller upholds this function's contract.
        return Ok((unsafe { adopt_allocation(context, native, is_owned) }?, 0));
    };
    if is_owned {
        // From now on, the storage keeps the memory alive.
        let start = ptr::without_provenance(native);
        drop(context.state().usm.free(start)?);
    }
    Ok((adopted, 0))
}

/// Creates a storage from memory that the program allocated with the driver.
///
/// # Safety
/// The caller must uphold the contract of [`find`].
unsafe fn adopt_allocation(
    context: &Context,
    native: ur_native_handle_t,
    is_owned: bool,
) -> Result<Arc<Storage>> {
    let missing = "this native handle is neither a living buffer's nor memory of this context";
    let missing = || Failure::argument(missing);
    let start = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(native)).ok_or_else(missing)?;
    let mut failure = None;
    for device in context.devices() {
        let inner = context.on(device)?;
        // SAFETY: the caller upholds this function's contract. The driver refuses an address
        // without memory.
        match unsafe { Memory::adopt_allocation(inner, start, ownership(is_owned)) } {
            Ok(memory) => return Ok(Storage::adopt(inner, start, memory.all(), false)),
            // If no other device accepts the address, the driver's error is reported.
            Err(error @ Error::Driver { .. }) => failure = Some(Failure::from(error)),
            Err(_) => {}
        }
    }
    let wrong = ur_result_t::UR_RESULT_ERROR_INVALID_ARGUMENT;
    Err(failure.map_or_else(missing, |failure| failure.with_result(wrong)))
}

/// Creates a storage from memory that was allocated in the context.
fn adopt(context: &Context, native: ur_native_handle_t) -> Option<Arc<Storage>> {
    let start = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(native))?;
    let range = context.state().usm.adopt(start.as_ptr().cast())?;
    let (device, inner) = context.first();
    let is_direct = device.inner().info().capabilities.host_accessible_memory;
    Some(Storage::adopt(inner, start, range, is_direct))
}
