//! Addresses as values.

use std::fmt;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

/// An address of device or host memory. It is only a number, which any thread may keep. The code
/// that accesses memory through it must make sure that the access is valid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Address(NonZeroUsize);

impl Address {
    /// Returns the address of a pointer, and exposes the pointer's provenance.
    #[inline]
    pub fn new(pointer: NonNull<u8>) -> Self {
        Self(pointer.expose_provenance())
    }

    /// Returns a pointer to the address, with the provenance that was exposed for it.
    #[inline]
    pub fn pointer(self) -> NonNull<u8> {
        NonNull::with_exposed_provenance(self.0)
    }

    #[inline]
    pub fn get(self) -> usize {
        self.0.get()
    }

    /// Returns the address `offset` bytes further, inside the same memory.
    #[inline]
    pub fn offset(self, offset: usize) -> Self {
        let address = self.0.checked_add(offset);
        Self(address.expect("memory ends before the last address"))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Pointer::fmt(&self.pointer(), f)
    }
}
