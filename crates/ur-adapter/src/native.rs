//! Native handles: the driver's own objects, where there is a driver; otherwise what stands for
//! them.
//!
//! Without a driver, an object's native handle is the address of its state, which several UR
//! objects may share. It is looked up, never followed: a value that is no such handle is an error.

use crate::description;
use crate::failure::{Failure, Result};
use crosshandle::{NativeObject, Ownership};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use unified_runtime_sys::ur_native_handle_t;

/// An object of the adapter's driver.
pub(crate) fn of_driver(value: ur_native_handle_t) -> NativeObject {
    NativeObject::new(description::get().backend, value)
}

/// Who destroys an object of the driver, as UR's properties tell.
pub(crate) fn ownership(is_owned: bool) -> Ownership {
    if is_owned {
        Ownership::Owned
    } else {
        Ownership::Borrowed
    }
}

/// The native handles of one kind of object that were given out, and what they stand for.
pub(crate) struct NativeHandles<T> {
    given: Mutex<Option<HashMap<usize, Weak<T>>>>,
}

impl<T> NativeHandles<T> {
    pub(crate) const fn new() -> Self {
        Self {
            given: Mutex::new(None),
        }
    }

    /// The native handle of a state. It is good for as long as the state is held anywhere.
    pub(crate) fn of(&self, state: &Arc<T>) -> ur_native_handle_t {
        let address = Arc::as_ptr(state).addr();
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let given = given.get_or_insert_default();
        if given.len() == given.capacity() {
            given.retain(|_, state| state.strong_count() > 0);
        }
        given.insert(address, Arc::downgrade(state));
        address
    }

    /// What a native handle stands for.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for one that was not given out or whose object is gone.
    pub(crate) fn find(&self, native: ur_native_handle_t) -> Result<Arc<T>> {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given
            .as_ref()
            .and_then(|given| given.get(&native))
            .and_then(Weak::upgrade)
            .ok_or_else(|| {
                Failure::argument(
                    "this native handle is not one of a living object of this adapter",
                )
            })
    }
}
