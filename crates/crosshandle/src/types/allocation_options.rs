//! Options of an allocation.

use super::MemoryKind;

/// The size, kind and alignment of memory to allocate.
#[derive(Clone, Copy, Debug)]
pub struct AllocationOptions {
    pub(crate) len: usize,
    pub(crate) kind: MemoryKind,
    pub(crate) align: usize,
}

impl AllocationOptions {
    /// Asks for `len` bytes of device memory, aligned to 64 bytes.
    pub fn new(len: usize) -> Self {
        Self {
            len,
            kind: MemoryKind::Device,
            align: 64,
        }
    }

    /// Sets the kind of memory (default: [`MemoryKind::Device`]).
    pub fn kind(mut self, kind: MemoryKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the alignment of the address, in bytes: a power of two, at most 2 MiB (default: 64).
    pub fn align(mut self, align: usize) -> Self {
        self.align = align;
        self
    }
}
