//! Addresses as values.

use std::fmt;
use std::ptr::NonNull;

/// An address of device or host memory. Only a number: it may cross threads, and whoever accesses
/// memory through it answers for that.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address(NonNull<u8>);

// SAFETY: holding or copying an address accesses nothing.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    pub(crate) fn new(pointer: NonNull<u8>) -> Self {
        Self(pointer)
    }

    pub(crate) fn pointer(self) -> NonNull<u8> {
        self.0
    }

    pub(crate) fn get(self) -> usize {
        self.0.addr().get()
    }

    /// The address `offset` bytes on, inside the same memory.
    pub(crate) fn offset(self, offset: usize) -> Self {
        let address = self.0.addr().checked_add(offset);
        Self(
            self.0
                .with_addr(address.expect("memory ends before the last address")),
        )
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Pointer::fmt(&self.0, f)
    }
}
