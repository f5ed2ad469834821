//! Access rights to shared memory.

/// Access rights to mapped memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Reading only. The host's write is refused, a device's is a fault.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}
