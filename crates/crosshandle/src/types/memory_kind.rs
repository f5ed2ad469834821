//! Kinds of memory.

/// Where memory lives and who may access it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum MemoryKind {
    /// On the device; the host may not be able to access it directly.
    #[default]
    Device,
    /// On the host, accessible to both.
    Host,
    /// Accessible to both, wherever it lives.
    Shared,
}
