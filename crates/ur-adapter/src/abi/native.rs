//! Native handles: the driver's own objects, or addresses that identify objects on a device without
//! a driver.
//!
//! Without a driver, the native handle of an object is the address of the object's state, which
//! several UR objects may share. The adapter looks up such an address and never dereferences it. An
//! unknown address is an error.

use super::description;
use super::failure::{Failure, Result};
use super::lock::Lock;
use crosshandle::native::{NativeObject, Ownership};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use unified_runtime_sys::ur_native_handle_t;

/// Converts a native handle to an object from the adapter's driver.
pub(crate) fn of_driver(value: ur_native_handle_t) -> NativeObject {
    NativeObject::new(description::get().backend, value)
}

/// Converts UR's ownership flag, which says whether the adapter owns a driver's object.
pub(crate) fn ownership(is_owned: bool) -> Ownership {
    if is_owned {
        Ownership::Owned
    } else {
        Ownership::Borrowed
    }
}

/// The native handles that clients have received for one kind of object, each with the state that
/// it identifies.
pub(crate) struct NativeHandles<T> {
    given: Lock<Option<HashMap<usize, Weak<T>>>>,
}

impl<T> NativeHandles<T> {
    /// Creates an empty set of handles.
    pub(crate) const fn new() -> Self {
        Self {
            given: Lock::new(None),
        }
    }

    /// Returns the native handle of a state. The handle is valid as long as any object holds the
    /// state.
    pub(crate) fn of(&self, state: &Arc<T>) -> ur_native_handle_t {
        let address = Arc::as_ptr(state).addr();
        let mut given = self.given.lock();
        let given = given.get_or_insert_default();
        if given.len() == given.capacity() {
            given.retain(|_, state| state.strong_count() > 0);
        }
        given.insert(address, Arc::downgrade(state));
        address
    }

    /// Returns the state that a native handle identifies.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if the adapter never returned this handle, or if the state's last
    /// object was dropped.
    pub(crate) fn find(&self, native: ur_native_handle_t) -> Result<Arc<T>> {
        let given = self.given.lock();
        given
            .as_ref()
            .and_then(|given| given.get(&native))
            .and_then(Weak::upgrade)
            .ok_or_else(|| {
                Failure::argument(
                    "this native handle does not belong to a living object of this adapter",
                )
            })
    }
}
