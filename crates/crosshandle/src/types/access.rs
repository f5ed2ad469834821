//! Access rights to shared memory.

/// Access rights to mapped memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Reading only: a write is a fault.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}
