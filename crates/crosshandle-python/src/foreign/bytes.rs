//! Direct access to the bytes of other libraries' arrays. A store copies these bytes.

use super::description::{Foreign, Place};
use crosshandle::{Access, MemoryRange};
use std::ptr::{self, NonNull};
use std::slice;

/// The bytes of an array that has no gaps.
pub(crate) enum Bytes<'a> {
    Host(&'a [u8]),
    /// Bytes on a GPU, or `None` for an array without elements.
    Device(Option<MemoryRange>),
}

impl Foreign {
    /// Returns the array's bytes, or `None` if the array has gaps.
    ///
    /// # Safety
    /// Until the last use of the result, the caller must keep `self` alive and ensure that no
    /// thread writes to the array.
    pub(crate) unsafe fn bytes(&self) -> Option<Bytes<'_>> {
        if !self.layout.is_contiguous() {
            return None;
        }
        let len = self.layout.elements() * self.layout.dtype.bytes();
        if self.place != Place::Host {
            let first = NonNull::new(ptr::with_exposed_provenance_mut(self.first));
            // SAFETY: the array's library reported that the `len` bytes from `first` belong to the
            // array. `self` holds the owner, which keeps them alive.
            let range =
                |first| unsafe { MemoryRange::from_raw_parts(first, len, Access::ReadOnly) };
            return Some(Bytes::Device(first.filter(|_| len > 0).map(range)));
        }
        let first = ptr::with_exposed_provenance::<u8>(self.first);
        if len == 0 || first.is_null() {
            return Some(Bytes::Host(&[]));
        }
        // SAFETY: the array's library reported that the `len` bytes from `first` belong to the
        // array. `self` holds the owner, which keeps them alive. The caller guarantees that no
        // thread writes to them.
        Some(Bytes::Host(unsafe { slice::from_raw_parts(first, len) }))
    }
}
