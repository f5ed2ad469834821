//! Native handles of buffers: where the device finds them. That is what other libraries of the
//! driver can use.

use super::storage::Storage;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::native::ownership;
use crosshandle::Error;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use unified_runtime_sys::{ur_native_handle_t, ur_result_t};

/// Those that native handles were given of.
static GIVEN: Mutex<Vec<Weak<Storage>>> = Mutex::new(Vec::new());

fn given() -> MutexGuard<'static, Vec<Weak<Storage>>> {
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The native handle of what starts at an offset. It is good for as long as the memory is held
/// anywhere.
pub(super) fn handle(storage: &Arc<Storage>, offset: usize) -> ur_native_handle_t {
    if !storage.is_given.swap(true, Ordering::Relaxed) {
        let mut given = given();
        if given.len() == given.capacity() {
            given.retain(|storage| storage.strong_count() > 0);
        }
        given.push(Arc::downgrade(storage));
    }
    storage.address() + offset
}

/// The storage that a native handle points into, and where: a buffer's, or memory that was
/// allocated in the context, by us or with the driver.
///
/// Such an allocation the user need not free any more if it `is_owned` from now on.
///
/// # Errors
/// `INVALID_ARGUMENT` for a handle that is neither, `INVALID_MEM_OBJECT` for a part of an
/// allocation that is to be owned.
pub(super) fn find(
    context: &Context,
    native: ur_native_handle_t,
    is_owned: bool,
) -> Result<(Arc<Storage>, usize)> {
    // Dropped under the lock they could be the last ones, and their end takes time.
    let alive: Vec<_> = given().iter().filter_map(Weak::upgrade).collect();
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
        return Ok((adopt_allocation(context, native, is_owned)?, 0));
    };
    if is_owned {
        // The storage has a hold on it.
        let start = ptr::without_provenance(native);
        drop(context.state().usm.free(start)?);
    }
    Ok((adopted, 0))
}

/// What the program allocated with the driver, where that can be adopted.
fn adopt_allocation(
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
        // SAFETY: the caller of `urMemBufferCreateWithNativeHandle` passes memory of the driver, or
        // what is none, and keeps it unless he gives it away.
        match unsafe { inner.adopt_allocation(start, ownership(is_owned)) } {
            Ok(memory) => return Ok(Storage::adopt(inner, start, memory.all(), false)),
            // What the driver said against it.
            Err(error @ Error::Driver { .. }) => failure = Some(Failure::from(error)),
            Err(_) => {}
        }
    }
    let wrong = ur_result_t::UR_RESULT_ERROR_INVALID_ARGUMENT;
    Err(failure.map_or_else(missing, |failure| failure.with_result(wrong)))
}

fn adopt(context: &Context, native: ur_native_handle_t) -> Option<Arc<Storage>> {
    let start = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(native))?;
    let range = context.state().usm.adopt(start.as_ptr().cast())?;
    let (device, inner) = context.first();
    let is_direct = device.inner().info().capabilities.host_accessible_memory;
    Some(Storage::adopt(inner, start, range, is_direct))
}
