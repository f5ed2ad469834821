//! Kinds of memory, access to it, and options of its allocation.

/// Access rights to mapped memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Reading only. A write by the host is refused, and a write by a device is a fault.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// The location of memory, and whether the host and the device can access it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MemoryKind {
    /// Memory on the device. The host may not be able to access it directly.
    #[default]
    Device,
    /// Memory on the host that both the device and the host can access.
    Host,
    /// Memory that both the device and the host can access, regardless of its location.
    Shared,
}

/// Size, kind and alignment of memory to allocate, and whether its pages are allocated at once.
#[derive(Clone, Copy, Debug)]
pub struct AllocationOptions {
    pub len: usize,
    pub kind: MemoryKind,
    pub align: usize,
    pub populate: bool,
    pub overcommit: bool,
}

impl AllocationOptions {
    /// Requests `len` bytes of device memory, aligned to 64 bytes.
    pub fn new(len: usize) -> Self {
        Self {
            len,
            kind: MemoryKind::Device,
            align: 64,
            populate: false,
            overcommit: false,
        }
    }

    /// Sets the kind of memory (default: [`MemoryKind::Device`]).
    pub fn kind(mut self, kind: MemoryKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the alignment of the address in bytes. It must be a power of two of at most 2 MiB
    /// (default: 64).
    pub fn align(mut self, align: usize) -> Self {
        self.align = align;
        self
    }

    /// Sets whether the allocation may be larger than the machine's remaining memory (default: no).
    /// `ContextOptions::overcommit` sets the same for all
    /// allocations of a context.
    pub fn overcommit(mut self, overcommit: bool) -> Self {
        self.overcommit = overcommit;
        self
    }

    /// Sets whether all pages are allocated at once (default: no).
    ///
    /// Without this option, the kernel allocates each page of host memory when it is first touched,
    /// as with other allocators. Several allocations can then succeed even though together they
    /// exceed the available memory, and the kernel ends processes when it runs out. With this
    /// option, such an allocation fails with
    /// [`Error::OutOfMemory`](crate::error::Error::OutOfMemory) instead. The library compares the
    /// missing pages with the machine's remaining memory and with the limits of this process's
    /// control groups, and then allocates them. Allocations of other processes can still cause the
    /// kernel to end this process later.
    ///
    /// The call takes about as long as writing to all of the memory. The option has no effect on
    /// device memory, which is always fully allocated.
    pub fn populate(mut self, at_once: bool) -> Self {
        self.populate = at_once;
        self
    }
}
