//! Kinds of memory, access to it, and options of its allocation.

/// Access rights to mapped memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Reading only. The host's write is refused, a device's is a fault.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// The kind of memory: its place, and the sides that may access it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Memory on the device. The host may not be able to access it directly.
    #[default]
    Device,
    /// Memory on the host, which the device and the host can access.
    Host,
    /// Memory that the device and the host can access, wherever it lies.
    Shared,
}

/// The size, kind and alignment of memory to allocate, and whether it has to be there at once.
#[derive(Clone, Copy, Debug)]
pub struct AllocationOptions {
    pub(crate) len: usize,
    pub(crate) kind: MemoryKind,
    pub(crate) align: usize,
    pub(crate) populate: bool,
    pub(crate) overcommit: bool,
}

impl AllocationOptions {
    /// Asks for `len` bytes of device memory, aligned to 64 bytes.
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

    /// Sets the alignment of the address, in bytes: a power of two, at most 2 MiB (default: 64).
    pub fn align(mut self, align: usize) -> Self {
        self.align = align;
        self
    }

    /// Sets whether the allocation may be larger than what the machine has left, as
    /// [`ContextOptions::overcommit`](crate::ContextOptions::overcommit) does for all of a context's (default: no).
    pub fn overcommit(mut self, overcommit: bool) -> Self {
        self.overcommit = overcommit;
        self
    }

    /// Takes all memory at once (default: no).
    ///
    /// Host memory that is not taken at once is taken page by page when it is first touched, as
    /// memory of other allocators is: several allocations succeed although there may be less memory
    /// than all of them have, and the kernel ends processes when it runs out. With this option the allocation fails
    /// instead, with [`Error::OutOfMemory`](crate::Error::OutOfMemory): what is missing is compared
    /// with what the machine has left and with the limits of the control groups that this process is
    /// in, and then taken. What other processes take afterwards can still end this one.
    ///
    /// It takes about as long as writing to all of it. Memory of devices is always there: for it,
    /// this does nothing.
    pub fn populate(mut self, at_once: bool) -> Self {
        self.populate = at_once;
        self
    }
}
