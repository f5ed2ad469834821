//! The bytes of other libraries' arrays, to be copied elsewhere.

use super::description::{Foreign, Place};
use crosshandle::{Access, MemoryRange};
use std::ptr::{self, NonNull};
use std::slice;

/// Bytes without gaps.
pub(crate) enum Bytes<'a> {
    Host(&'a [u8]),
    /// On a GPU; `None` for an array without elements.
    Device(Option<MemoryRange>),
}

impl Foreign {
    /// Returns the array's bytes; `None` if there are gaps between them.
    ///
    /// # Safety
    /// Until the result is last used, nobody may write the array, and `self` has to live.
    pub(crate) unsafe fn bytes(&self) -> Option<Bytes<'_>> {
        if !self.layout.is_contiguous() {
            return None;
        }
        let len = self.layout.elements() * self.layout.dtype.bytes();
        if self.place != Place::Host {
            let first = NonNull::new(ptr::with_exposed_provenance_mut(self.first));
            // SAFETY: the library says that these bytes are the array's, and its owner is held by `self`.
            let range =
                |first| unsafe { MemoryRange::from_raw_parts(first, len, Access::ReadOnly) };
            return Some(Bytes::Device(first.filter(|_| len > 0).map(range)));
        }
        let first = ptr::with_exposed_provenance::<u8>(self.first);
        if len == 0 || first.is_null() {
            return Some(Bytes::Host(&[]));
        }
        // SAFETY: the library says that these bytes are the array's, its owner is held by `self`, and the caller
        // keeps writers away.
        Some(Bytes::Host(unsafe { slice::from_raw_parts(first, len) }))
    }
}
