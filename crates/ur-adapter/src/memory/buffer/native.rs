//! Native handles of buffers. The native handle is the buffer's device address, which other
//! libraries that use the same driver can access. If clients expect OpenCL, it is a `cl_mem`.

use super::storage::Storage;
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::abi::native::ownership;
use crate::context::Context;
use crate::discovery::Device;
use crate::discovery::device::opencl_of;
use crosshandle::native::RuntimeMemory;
use crosshandle::{Error, Memory};
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use unified_runtime_sys::{ur_native_handle_t, ur_result_t};

/// The storages for which this adapter has returned a native handle.
static GIVEN: Lock<Vec<Weak<Storage>>> = Lock::new(Vec::new());

/// The `cl_mem` of a buffer. `None` until a client asks for it.
#[derive(Default)]
pub(super) struct Object(Lock<Option<RuntimeMemory>>);

/// The `cl_mem` of each buffer that has one, with the buffer's storage and offset.
static OBJECTS: Lock<Vec<(ur_native_handle_t, Weak<Storage>, usize)>> = Lock::new(Vec::new());

impl Object {
    /// Returns the `cl_mem` for a range of the storage whose first byte is at `start`.
    fn of(
        &self,
        device: &Device,
        storage: &Arc<Storage>,
        range: Range<usize>,
        start: usize,
    ) -> Result<ur_native_handle_t> {
        let mut place = self.0.lock();
        if let Some(memory) = &*place {
            return Ok(memory.raw());
        }
        let start = NonNull::new(ptr::with_exposed_provenance_mut(start))
            .ok_or_else(|| Failure::argument("this buffer has no memory"))?;
        // SAFETY: the buffer keeps the storage, and drops this object first. The caller of the
        // native handle guarantees that the runtime's commands end before the buffer is released.
        let memory = unsafe { RuntimeMemory::new(device.inner(), start, range.len()) }?;
        let native = memory.raw();
        *place = Some(memory);
        OBJECTS
            .lock()
            .push((native, Arc::downgrade(storage), range.start));
        Ok(native)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        if let Some(memory) = self.0.get_mut() {
            let native = memory.raw();
            OBJECTS.lock().retain(|(known, _, _)| *known != native);
        }
    }
}

/// Returns the native handle for a range of a storage. The handle is valid as long as an object
/// keeps the memory alive. A `cl_mem` is valid as long as the buffer of `object`.
pub(super) fn handle(
    storage: &Arc<Storage>,
    device: &Device,
    range: Range<usize>,
    object: &Object,
) -> Result<ur_native_handle_t> {
    let address = storage.native_address(device)?;
    let offset = range.start;
    if opencl_of(device.inner()).is_some() {
        return object.of(device, storage, range, address + offset);
    }
    if !storage.is_given.swap(true, Ordering::Relaxed) {
        let mut given = GIVEN.lock();
        if given.len() == given.capacity() {
            given.retain(|storage| storage.strong_count() > 0);
        }
        given.push(Arc::downgrade(storage));
    }
    Ok(address + offset)
}

/// Returns the storage for a native handle, and the offset of the handle's address in that storage.
/// The storage belongs to an existing buffer, or is created from memory that this adapter or the
/// driver allocated in the context.
///
/// If `is_owned` is true, the storage takes over such an allocation, so the user must not free it.
///
/// # Errors
/// Returns `INVALID_ARGUMENT` if the handle does not refer to such memory. Returns
/// `INVALID_MEM_OBJECT` if `is_owned` is true and the handle is not the start of an allocation.
///
/// # Safety
/// The caller must ensure that the handle is the native handle of a buffer, the address of memory
/// in the context or of the driver, or an address without memory. Unless `is_owned` is true, the
/// owner of the memory must keep it alive as long as the storage uses it.
pub(super) unsafe fn find(
    context: &Context,
    native: ur_native_handle_t,
    is_owned: bool,
) -> Result<(Arc<Storage>, usize)> {
    let objects = OBJECTS.lock();
    let known = objects.iter().find(|(known, _, _)| *known == native);
    let known = known.and_then(|(_, storage, offset)| Some((storage.upgrade()?, *offset)));
    drop(objects);
    if let Some(found) = known {
        return Ok(found);
    }
    // The storages are collected first, because dropping the last reference to a storage takes
    // time. It must not happen while the lock is held.
    let alive: Vec<_> = GIVEN.lock().iter().filter_map(Weak::upgrade).collect();
    let nearest = alive
        .into_iter()
        .filter_map(|storage| {
            let offset = native.checked_sub(storage.address()?)?;
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
        // The storage now keeps the memory alive.
        let start = ptr::without_provenance(native);
        drop(context.state().usm.free(start)?);
    }
    Ok((adopted, 0))
}

/// Creates a storage from memory that the program allocated by calls of the driver.
///
/// # Safety
/// The caller must uphold the contract of [`find`].
unsafe fn adopt_allocation(
    context: &Context,
    native: ur_native_handle_t,
    is_owned: bool,
) -> Result<Arc<Storage>> {
    let missing = "this native handle is neither that of a living buffer nor the address of memory in this context";
    let missing = || Failure::argument(missing);
    let start = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(native)).ok_or_else(missing)?;
    let mut failure = None;
    for device in context.devices() {
        let inner = context.on(device)?;
        // SAFETY: the caller ensures that memory at this address stays alive. The driver refuses an
        // address without memory.
        match unsafe { Memory::adopt_allocation(inner, start, ownership(is_owned)) } {
            Ok(memory) => return Ok(Storage::adopt(inner, start, memory.all(), false)),
            // If no device accepts the address, this error of the driver is reported.
            Err(error @ Error::Driver { .. }) => failure = Some(Failure::from(error)),
            Err(_) => {}
        }
    }
    let wrong = ur_result_t::UR_RESULT_ERROR_INVALID_ARGUMENT;
    Err(failure.map_or_else(missing, |failure| failure.with_result(wrong)))
}

/// Creates a storage from memory that was allocated in the context. Returns `None` if the context
/// has no memory at this address.
fn adopt(context: &Context, native: ur_native_handle_t) -> Option<Arc<Storage>> {
    let start = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(native))?;
    let range = context.state().usm.adopt(start.as_ptr().cast())?;
    let (device, inner) = context.first();
    let is_direct = device.inner().info().capabilities.host_accessible_memory;
    Some(Storage::adopt(inner, start, range, is_direct))
}
