//! Kinds of memory.

/// The place of memory, and what may access it.
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
