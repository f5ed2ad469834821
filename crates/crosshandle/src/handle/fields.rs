//! The contents of a handle in Rust's own types.

use std::fmt;
use std::str::FromStr;

/// The kind of object that a handle refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HandleKind {
    /// A range of an allocation, which opening the handle maps.
    Memory = 1,
    /// Physical memory, which the importer maps into a virtual range of its own choice.
    PhysicalMemory = 2,
    /// A synchronisation event.
    Event = 3,
}

impl HandleKind {
    pub(super) const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Memory),
            2 => Some(Self::PhysicalMemory),
            3 => Some(Self::Event),
            _ => None,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::PhysicalMemory => "physical memory",
            Self::Event => "event",
        }
    }
}

impl fmt::Display for HandleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The driver that an object belongs to. `Display` and `FromStr` use `host`, `cuda`, `level_zero`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum BackendKind {
    /// Memory of the host, and events on futexes.
    Host = 1,
    /// NVIDIA's CUDA driver.
    Cuda = 2,
    /// Intel's Level Zero driver.
    LevelZero = 3,
}

impl BackendKind {
    const ALL: [Self; 3] = [Self::Host, Self::Cuda, Self::LevelZero];

    pub(super) const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Host),
            2 => Some(Self::Cuda),
            3 => Some(Self::LevelZero),
            _ => None,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Cuda => "cuda",
            Self::LevelZero => "level_zero",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for a text that is not the name of a backend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no backend named {0:?}; use \"host\", \"cuda\" or \"level_zero\"")]
pub struct UnknownBackend(String);

impl FromStr for BackendKind {
    type Err = UnknownBackend;

    fn from_str(text: &str) -> Result<Self, UnknownBackend> {
        Self::ALL
            .into_iter()
            .find(|backend| backend.name() == text)
            .ok_or_else(|| UnknownBackend(text.to_owned()))
    }
}

/// The identity of a device, equal in every process. Shown as 8-4-4-4-12 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct DeviceUuid([u8; 16]);

impl DeviceUuid {
    /// Returns the identity with these bytes, in the order in which they are shown.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes, in the order in which they are shown.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceUuid({self})")
    }
}

/// The capability of one object and one kind of access: an importer that presents it may open what
/// the key was made for, and nothing else. `Debug` never shows it.
#[derive(Clone, Copy, Eq)]
#[repr(transparent)]
pub struct Key([u8; 16]);

impl Key {
    /// Returns the key with these bytes. A handle whose key is all zero is refused.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes. Keep them out of logs.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Compares in a time that does not depend on the bytes.
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let [ours, theirs] = [self, other].map(|key| u128::from_ne_bytes(key.0));
        std::hint::black_box(ours ^ theirs) == 0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The contents of a handle, except for its kind, which is its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields {
    /// The driver that the object belongs to.
    pub backend: BackendKind,
    /// Whether the importer can only read the memory. Always false for an event.
    pub read_only: bool,
    /// Random number that names the exporting process; nonzero.
    pub exporter: u64,
    /// The exporter's process id in its own PID namespace; for messages only.
    pub pid: u32,
    /// Number of the exporting context in its process; nonzero.
    pub context: u32,
    /// The capability of this object and access; not all zero.
    pub key: Key,
    /// The device that the object lives on.
    pub device: DeviceUuid,
    /// Generation of the record: its lowest two bits are the kind's number, the others count the
    /// record's uses.
    pub generation: u64,
    /// Index of the object's record in its context.
    pub record: u32,
    /// Number of the memory segment in its context; of an event, number of its arena: 0 for the
    /// context's own, otherwise the event has one to itself.
    pub segment: u32,
    /// Offset of the first shared byte from the segment's start, in bytes; 0 for an event.
    pub offset: u64,
    /// Number of shared bytes; nonzero for memory, 0 for an event.
    pub length: u64,
    // Not beside `exporter`, as in the bytes: the two would be loaded as one, from bytes that were
    // stored in two pieces just before, and the processor waits for that.
    /// Identity of the exporter's kernel; nonzero.
    pub host: u64,
}
