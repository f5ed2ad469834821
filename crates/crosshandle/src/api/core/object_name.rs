//! Names of objects, for people.

use crate::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The name that the program gave an object. Other processes see it once the object is exported.
#[derive(Default)]
pub(crate) struct ObjectName {
    /// Whether there is one: few objects have a name, and this costs the others one load.
    is_set: AtomicBool,
    text: Mutex<Box<str>>,
}

impl ObjectName {
    pub(crate) fn set(&self, name: &str) {
        *self.text.lock() = name.into();
        self.is_set.store(!name.is_empty(), Ordering::Release);
    }

    /// Returns the name, if there is one.
    pub(crate) fn get(&self) -> Option<String> {
        self.is_set
            .load(Ordering::Acquire)
            .then(|| self.text.lock().to_string())
    }

    /// Removes the name.
    #[inline]
    pub(crate) fn clear(&self) {
        if self.is_set.load(Ordering::Relaxed) {
            self.set("");
        }
    }
}
