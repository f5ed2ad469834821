//! Names that programs give to objects, for display.

use crosshandle_ipc::MAX_NAME_BYTES;
use crosshandle_types::sync::Mutex;
use std::sync::OnceLock;

/// The name that the program gave an object. Other processes see the name once the object is
/// exported.
#[derive(Default)]
pub(crate) struct ObjectName {
    /// The inner text is empty if the name was removed. Few objects have a name, so a check for the
    /// name of an unnamed object costs only one load.
    text: OnceLock<Box<Mutex<Box<str>>>>,
}

impl ObjectName {
    pub(crate) fn set(&self, name: &str) {
        // Cut to the length that importers see.
        let name = &name[..name.floor_char_boundary(MAX_NAME_BYTES.min(name.len()))];
        *self.text.get_or_init(Box::default).lock() = name.into();
    }

    pub(crate) fn get(&self) -> Option<String> {
        let name = self.text.get()?.lock().to_string();
        Some(name).filter(|name| !name.is_empty())
    }

    #[inline]
    pub(crate) fn clear(&self) {
        if let Some(text) = self.text.get() {
            *text.lock() = Box::default();
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
