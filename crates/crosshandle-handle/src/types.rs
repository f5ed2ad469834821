//! The handle types: one for each kind of object, and one for a kind not yet known.

use std::fmt;
use std::str::FromStr;

use super::wire::{self, EVENT_HANDLE_SIZE, MEMORY_HANDLE_SIZE};
use super::{BackendKind, DeviceUuid, Explanation, Fields, HandleError, HandleKind, text};

/// Defines a handle type with its documentation, and with the functions that all handle types
/// share.
macro_rules! handle_type {
    ($(#[$doc:meta])* $Handle:ident, $kind:expr, $size:ident, $encode:ident, $decode:ident) => {
        $(#[$doc])*
        ///
        /// A value is always well-formed. Two values are equal if their bytes are equal.
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $Handle([u8; $size]);

        impl $Handle {
            const KIND: HandleKind = $kind;

            /// Checks `bytes` and returns them as a handle.
            ///
            /// # Errors
            /// Returns any [`HandleError`] except [`BadText`](HandleError::BadText).
            pub fn from_bytes(bytes: &[u8]) -> Result<Self, HandleError> {
                wire::parse(bytes, Self::KIND).map(Self)
            }

            /// Returns the bytes to send to another process.
            pub const fn as_bytes(&self) -> &[u8; $size] {
                &self.0
            }

            /// Returns the driver that the object belongs to.
            pub fn backend(&self) -> BackendKind {
                self.fields().backend
            }

            /// Returns the exporter's process id in the exporter's own PID namespace. Use it in
            /// messages only, because another process may have the same id here or later.
            pub fn exporter_pid(&self) -> u32 {
                self.fields().pid
            }

            /// Makes a handle with these contents, which must follow the rules of [`Fields`].
            pub fn new(fields: &Fields) -> Self {
                Self(wire::$encode(Self::KIND, fields))
            }

            /// Returns the contents.
            pub fn fields(&self) -> Fields {
                wire::$decode(&self.0)
            }
        }

        impl AsRef<[u8]> for $Handle {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl TryFrom<&[u8]> for $Handle {
            type Error = HandleError;

            fn try_from(bytes: &[u8]) -> Result<Self, HandleError> {
                Self::from_bytes(bytes)
            }
        }

        /// Writes the text form.
        impl fmt::Display for $Handle {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                text::write(Self::KIND, &self.0, f)
            }
        }

        /// Reads the text form, and ignores surrounding white space.
        impl FromStr for $Handle {
            type Err = HandleError;

            fn from_str(text: &str) -> Result<Self, HandleError> {
                Self::from_bytes(&text::decode::<$size>(text, Self::KIND)?)
            }
        }

        /// Writes the contents without the key.
        impl fmt::Debug for $Handle {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($Handle)).field(&self.fields()).finish()
            }
        }
    };
}

/// Defines the functions that only handles of memory have.
macro_rules! memory_getters {
    ($Handle:ident) => {
        impl $Handle {
            /// Returns the device that the memory lives on.
            pub fn device(&self) -> DeviceUuid {
                self.fields().device
            }

            /// Returns the number of shared bytes, which is never 0.
            #[allow(clippy::len_without_is_empty, reason = "no handle shares nothing")]
            pub fn len(&self) -> u64 {
                self.fields().length
            }

            /// Returns whether the importer can only read the memory.
            pub fn is_read_only(&self) -> bool {
                self.fields().read_only
            }
        }
    };
}

handle_type! {
    /// A handle of a range of an allocation. Opening it in another process maps the range there.
    MemoryHandle, HandleKind::Memory, MEMORY_HANDLE_SIZE, encode_memory, decode_memory
}
handle_type! {
    /// A handle of physical memory. The importer maps it at an address of its own choice.
    PhysicalMemoryHandle, HandleKind::PhysicalMemory, MEMORY_HANDLE_SIZE, encode_memory, decode_memory
}
handle_type! {
    /// A handle of an event. The exporter and all importers may signal it and wait for it.
    EventHandle, HandleKind::Event, EVENT_HANDLE_SIZE, encode_event, decode_event
}
handle_type! {
    /// A handle of a channel. It names the memory that contains the channel's items.
    ChannelHandle, HandleKind::Channel, MEMORY_HANDLE_SIZE, encode_memory, decode_memory
}
memory_getters!(MemoryHandle);
memory_getters!(PhysicalMemoryHandle);

impl ChannelHandle {
    /// Makes the handle of a channel from the handle of the memory that contains its items. The
    /// handle of read-only memory grants only the role of consumers.
    pub fn of_memory(memory: &MemoryHandle) -> Self {
        Self::new(&memory.fields())
    }

    /// Returns whether the handle grants only the role of consumers.
    pub fn is_consumers(&self) -> bool {
        self.fields().read_only
    }

    /// Returns the handle of the memory that contains the channel's items.
    pub fn memory(&self) -> MemoryHandle {
        MemoryHandle::new(&self.fields())
    }
}

/// A handle of any kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AnyHandle {
    /// A range of an allocation.
    Memory(MemoryHandle),
    /// Physical memory.
    PhysicalMemory(PhysicalMemoryHandle),
    /// An event.
    Event(EventHandle),
    /// A channel.
    Channel(ChannelHandle),
}

/// Evaluates an expression for the handle that an [`AnyHandle`] contains.
macro_rules! for_any {
    ($any:expr, $handle:ident => $value:expr) => {
        match $any {
            AnyHandle::Memory($handle) => $value,
            AnyHandle::PhysicalMemory($handle) => $value,
            AnyHandle::Event($handle) => $value,
            AnyHandle::Channel($handle) => $value,
        }
    };
}

impl AnyHandle {
    /// Checks `bytes` and returns them as a handle of the kind that they name.
    ///
    /// # Errors
    /// Returns any [`HandleError`] except [`WrongKind`](HandleError::WrongKind) and
    /// [`BadText`](HandleError::BadText).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HandleError> {
        let kind = wire::check(bytes, None)?;
        Ok(match kind {
            HandleKind::Memory => MemoryHandle(wire::sized(bytes, kind)?).into(),
            HandleKind::PhysicalMemory => PhysicalMemoryHandle(wire::sized(bytes, kind)?).into(),
            HandleKind::Event => EventHandle(wire::sized(bytes, kind)?).into(),
            HandleKind::Channel => ChannelHandle(wire::sized(bytes, kind)?).into(),
        })
    }

    /// Returns the bytes to send to another process. Their number depends on the kind.
    pub const fn as_bytes(&self) -> &[u8] {
        for_any!(self, handle => handle.as_bytes())
    }

    /// Returns the kind of object that the handle refers to.
    pub const fn kind(&self) -> HandleKind {
        match self {
            Self::Memory(_) => HandleKind::Memory,
            Self::PhysicalMemory(_) => HandleKind::PhysicalMemory,
            Self::Event(_) => HandleKind::Event,
            Self::Channel(_) => HandleKind::Channel,
        }
    }

    /// Explains the handle in words, without its key and without opening anything.
    ///
    /// If `local_host`, the identity of the running kernel, is given, the explanation says whether
    /// the handle can be opened on this machine.
    pub fn explain(&self, local_host: Option<u64>) -> Explanation {
        Explanation::new(self.kind(), &self.fields(), local_host)
    }

    pub fn fields(&self) -> Fields {
        for_any!(self, handle => handle.fields())
    }
}

impl AsRef<[u8]> for AnyHandle {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl TryFrom<&[u8]> for AnyHandle {
    type Error = HandleError;

    fn try_from(bytes: &[u8]) -> Result<Self, HandleError> {
        Self::from_bytes(bytes)
    }
}

/// Writes the text form.
impl fmt::Display for AnyHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::write(self.kind(), self.as_bytes(), f)
    }
}

/// Reads the text form of any kind, and ignores surrounding white space.
impl FromStr for AnyHandle {
    type Err = HandleError;

    fn from_str(text: &str) -> Result<Self, HandleError> {
        // The prefix chooses the kind, so bytes of another kind are rejected.
        Ok(match text::kind_of(text)? {
            HandleKind::Memory => text.parse::<MemoryHandle>()?.into(),
            HandleKind::PhysicalMemory => text.parse::<PhysicalMemoryHandle>()?.into(),
            HandleKind::Event => text.parse::<EventHandle>()?.into(),
            HandleKind::Channel => text.parse::<ChannelHandle>()?.into(),
        })
    }
}

impl From<MemoryHandle> for AnyHandle {
    fn from(handle: MemoryHandle) -> Self {
        Self::Memory(handle)
    }
}

impl From<PhysicalMemoryHandle> for AnyHandle {
    fn from(handle: PhysicalMemoryHandle) -> Self {
        Self::PhysicalMemory(handle)
    }
}

impl From<EventHandle> for AnyHandle {
    fn from(handle: EventHandle) -> Self {
        Self::Event(handle)
    }
}

impl From<ChannelHandle> for AnyHandle {
    fn from(handle: ChannelHandle) -> Self {
        Self::Channel(handle)
    }
}
