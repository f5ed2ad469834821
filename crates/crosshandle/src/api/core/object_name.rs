//! Names of objects, for people.

use crate::ipc::MAX_NAME_BYTES;
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
        // As importers see it.
        let name = &name[..name.floor_char_boundary(MAX_NAME_BYTES.min(name.len()))];
        let mut text = self.text.lock();
        *text = name.into();
        // Under the lock, so that of two names set at once one wins in both places.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_importers_see_of_it() {
        let name = ObjectName::default();
        assert_eq!(name.get(), None);
        name.set("weights of the größte model, layer 17");
        assert_eq!(
            name.get().as_deref(),
            Some("weights of the größte model, l")
        );
        name.clear();
        assert_eq!(name.get(), None);
    }
}
