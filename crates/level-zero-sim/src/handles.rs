//! Handles of objects. Each handle is an address that was never used before, so the driver
//! recognises the handle of a destroyed object for the life of the process.

use std::any::Any;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use crate::call::{INVALID_ARGUMENT, INVALID_NULL_HANDLE, Result};
use crate::checks::{Check, misuse};
use crate::context::Context;
use crate::ledger::{self, Resource};
use crate::os::Mapping;

/// Distance between two handles, in bytes.
const STRIDE: usize = 64;
/// Size of the address range for handles, in bytes. Nothing is stored there, so a loader that reads
/// through a handle sees zeros.
const ROOM: usize = 1 << 30;

pub(crate) trait Object: Any + Send + Sync {
    /// The object's name in reports of wrong use.
    const NAME: &'static str;

    /// Returns the kind of resource that the report counts the object as.
    fn resource(&self) -> Resource;

    /// Returns the context that the object must not outlive.
    fn context(&self) -> Option<&Arc<Context>>;
}

struct Slot {
    name: &'static str,
    /// The object, or `None` after it was destroyed.
    object: Option<Arc<dyn Any + Send + Sync>>,
}

struct Registry {
    room: Mapping,
    slots: RwLock<Vec<Slot>>,
}

static REGISTRY: LazyLock<Option<Registry>> = LazyLock::new(|| {
    Some(Registry {
        room: Mapping::zeros(ROOM).ok()?,
        slots: RwLock::new(Vec::new()),
    })
});

fn registry() -> Result<&'static Registry> {
    REGISTRY.as_ref().ok_or(crate::call::OUT_OF_DEVICE_MEMORY)
}

pub(crate) fn create<T: Object, H>(object: Arc<T>) -> Result<*mut H> {
    let registry = registry()?;
    ledger::add(object.resource());
    if let Some(context) = object.context() {
        context.gain();
    }
    let mut slots = registry
        .slots
        .write()
        .unwrap_or_else(PoisonError::into_inner);
    let index = slots.len();
    slots.push(Slot {
        name: T::NAME,
        object: Some(object),
    });
    // The first place stays unused, so that no handle equals the start of the range.
    let offset = (index + 1) * STRIDE;
    assert!(offset < ROOM, "there are no handles left");
    Ok(ptr::with_exposed_provenance_mut(
        registry.room.address() + offset,
    ))
}

/// Looks up a handle. The object is `None` if it was destroyed.
fn find<T: Object>(handle: *mut c_void) -> Result<(usize, Option<Arc<T>>)> {
    if handle.is_null() {
        return Err(INVALID_NULL_HANDLE);
    }
    let registry = registry()?;
    let slots = registry
        .slots
        .read()
        .unwrap_or_else(PoisonError::into_inner);
    let offset = handle.addr().wrapping_sub(registry.room.address());
    let index = (offset / STRIDE).wrapping_sub(1);
    let slot = match slots.get(index) {
        Some(slot) if offset.is_multiple_of(STRIDE) => slot,
        _ => {
            misuse(Check::WrongHandle, &format!("{handle:p} is no {}", T::NAME));
            return Err(INVALID_ARGUMENT);
        }
    };
    if slot.name != T::NAME {
        misuse(
            Check::WrongHandle,
            &format!("{handle:p} is a {}, no {}", slot.name, T::NAME),
        );
        return Err(INVALID_ARGUMENT);
    }
    let object = slot.object.clone().map(|object| object.downcast::<T>());
    Ok((index, object.and_then(std::result::Result::ok)))
}

pub(crate) fn get<T: Object, H>(handle: *mut H) -> Result<Arc<T>> {
    match find(handle.cast())? {
        (_, Some(object)) => Ok(object),
        (_, None) => {
            let what = format!("the {} {handle:p} is destroyed", T::NAME);
            misuse(Check::UseAfterDestroy, &what);
            Err(INVALID_ARGUMENT)
        }
    }
}

/// Returns the object of a handle that may be null.
pub(crate) fn get_optional<T: Object, H>(handle: *mut H) -> Result<Option<Arc<T>>> {
    if handle.is_null() {
        return Ok(None);
    }
    get(handle).map(Some)
}

/// Removes a handle and returns its object, if `check` allows it.
pub(crate) fn take<T: Object, H>(
    handle: *mut H,
    check: impl FnOnce(&Arc<T>) -> Result<()>,
) -> Result<Arc<T>> {
    let (index, object) = find::<T>(handle.cast())?;
    let Some(object) = object else {
        let what = format!("the {} {handle:p} is destroyed already", T::NAME);
        misuse(Check::DoubleClose, &what);
        return Err(INVALID_ARGUMENT);
    };
    check(&object)?;
    let mut slots = registry()?
        .slots
        .write()
        .unwrap_or_else(PoisonError::into_inner);
    let taken = slots[index].object.take();
    drop(slots);
    if taken.is_some() {
        ledger::remove(object.resource());
        if let Some(context) = object.context() {
            context.lose();
        }
    }
    Ok(object)
}
