//! The decoded contents of a handle.

use super::text::PREFIX_LENGTH;
use super::wire::{EVENT_HANDLE_SIZE, MEMORY_HANDLE_SIZE};
use std::fmt;
use std::str::FromStr;

/// The kind of object that a handle refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HandleKind {
    /// A range of an allocation. Opening the handle maps the range.
    Memory = 1,
    /// Physical memory. The importer maps it into a virtual range of its choice.
    PhysicalMemory = 2,
    /// A synchronisation event.
    Event = 3,
    /// A channel. Its handle names the memory that contains the channel's items.
    Channel = 4,
}

impl HandleKind {
    pub(super) const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Memory),
            2 => Some(Self::PhysicalMemory),
            3 => Some(Self::Event),
            4 => Some(Self::Channel),
            _ => None,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::PhysicalMemory => "physical memory",
            Self::Event => "event",
            Self::Channel => "channel",
        }
    }

    /// Returns the size of a handle of this kind in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::Event => EVENT_HANDLE_SIZE,
            Self::Memory | Self::PhysicalMemory | Self::Channel => MEMORY_HANDLE_SIZE,
        }
    }

    /// Returns the number of characters in the text form of a handle of this kind. All are ASCII.
    pub const fn text_length(self) -> usize {
        PREFIX_LENGTH + (self.size() * 8).div_ceil(6)
    }

    /// Returns the kind of the record that a handle of this kind refers to. The record of a channel
    /// is the record of its memory.
    pub(super) const fn of_record(self) -> Self {
        match self {
            Self::Channel => Self::Memory,
            other => other,
        }
    }
}

impl fmt::Display for HandleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Declares the backends. Each backend has a name, and a number that is part of the wire format and
/// never changes.
macro_rules! backends {
    ($($(#[$doc:meta])* $backend:ident = $code:literal, $name:literal;)*) => {
        /// The driver that an object belongs to. `Display` and `FromStr` use its name, such as
        /// `level_zero`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum BackendKind {
            $($(#[$doc])* $backend = $code,)*
        }

        impl BackendKind {
            /// All backends, in the order of their numbers.
            pub(super) const ALL: &[Self] = &[$(Self::$backend),*];

            pub(super) const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$backend),)*
                    _ => None,
                }
            }

            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$backend => $name,)*
                }
            }
        }
    };
}

backends! {
    /// Memory of the host, and events on futexes.
    Host = 1, "host";
    /// NVIDIA's CUDA driver.
    Cuda = 2, "cuda";
    /// Intel's Level Zero driver.
    LevelZero = 3, "level_zero";
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for a text that is not the name of a backend.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no backend named {0:?}; use one of {names}", names = names())]
pub struct UnknownBackend(String);

/// Returns the names of all backends, in quotation marks.
fn names() -> String {
    let names: Vec<_> = (BackendKind::ALL.iter())
        .map(|backend| format!("{:?}", backend.name()))
        .collect();
    names.join(", ")
}

/// Prints the text, because Rust prints this form of an error that `main` returns.
impl fmt::Debug for UnknownBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for BackendKind {
    type Err = UnknownBackend;

    fn from_str(text: &str) -> Result<Self, UnknownBackend> {
        (Self::ALL.iter().copied())
            .find(|backend| backend.name() == text)
            .ok_or_else(|| UnknownBackend(text.to_owned()))
    }
}

/// The identity of a device, which is the same in every process. `Display` writes 8-4-4-4-12
/// hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct DeviceUuid([u8; 16]);

impl DeviceUuid {
    /// Makes an identity from its bytes, in the order in which `Display` writes them.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes, in the order in which `Display` writes them.
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

/// The capability for one object and one kind of access. An importer that presents a key may open
/// the object of the key, and nothing else. `Debug` never shows the bytes.
#[derive(Clone, Copy, Eq)]
#[repr(transparent)]
pub struct Key([u8; 16]);

impl Key {
    /// Makes a key from its bytes. A handle with an all-zero key is rejected.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes. Keep them out of logs.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Compares in constant time, whatever the bytes are.
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

/// The contents of a handle, except for its kind, which the handle's type tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields {
    /// The driver that the object belongs to.
    pub backend: BackendKind,
    /// Whether the importer can only read the memory, or only receive items of the channel. Always
    /// false for an event.
    pub read_only: bool,
    /// Whether the event has an arena to itself. Otherwise it lies in an arena of its context.
    /// Always false for memory.
    pub isolated: bool,
    /// Random identity of the exporting process; nonzero.
    pub exporter: u64,
    /// The exporter's process id in its own PID namespace, for messages only.
    pub pid: u32,
    /// Number of the exporting context in its process; nonzero.
    pub context: u32,
    /// The capability for this object and access; not all zero.
    pub key: Key,
    /// The device that the memory lives on. All zero for an event, whose state is host memory.
    pub device: DeviceUuid,
    /// Generation of the record. The lowest two bits are the number of the object's kind, and the
    /// other bits count the uses of the record. A channel is memory in this respect.
    pub generation: u64,
    /// Index of the object's record in its context.
    pub record: u32,
    /// Number of the memory's segment in its context; 0 for an event.
    pub segment: u32,
    /// Offset of the first shared byte from the segment's start, in bytes; 0 for an event.
    pub offset: u64,
    /// Number of shared bytes; nonzero for memory, 0 for an event.
    pub length: u64,
    // This field is not next to `exporter`, as it is in the bytes. The compiler would load the two
    // fields as one, from bytes that were just stored in two pieces, and the processor would stall.
    /// Identity of the exporter's kernel; nonzero.
    pub host: u64,
}
