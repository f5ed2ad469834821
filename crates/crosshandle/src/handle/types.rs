//! The handle types: one per kind of object, and one for a kind not yet known.

use std::fmt;
use std::str::FromStr;

use super::wire::{self, HANDLE_SIZE};
use super::{BackendKind, DeviceUuid, Explanation, Fields, HandleError, HandleKind, text};

/// Defines a handle type; what it shares with the others is here, what it means is its docs.
macro_rules! handle_type {
    ($(#[$doc:meta])* $Handle:ident, $kind:expr) => {
        $(#[$doc])*
        ///
        /// The value is always well-formed. Equality and hash are those of the bytes.
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $Handle([u8; HANDLE_SIZE]);

        impl $Handle {
            const KIND: HandleKind = $kind;

            /// Checks `bytes` and takes them as a handle; every [`HandleError`] but
            /// [`BadText`](HandleError::BadText) is possible.
            pub fn from_bytes(bytes: &[u8]) -> Result<Self, HandleError> {
                wire::parse(bytes, Self::KIND).map(Self)
            }

            /// The bytes to send to another process.
            pub const fn as_bytes(&self) -> &[u8; HANDLE_SIZE] {
                &self.0
            }

            /// The driver that the object belongs to.
            pub fn backend(&self) -> BackendKind {
                self.fields().backend
            }

            /// The device that the object lives on.
            pub fn device(&self) -> DeviceUuid {
                self.fields().device
            }

            /// Process id of the exporter, in the exporter's own PID namespace. For messages: it
            /// may be another process by now, or mean nothing here.
            pub fn exporter_pid(&self) -> u32 {
                self.fields().pid
            }

            /// A handle with this contents, which must obey the rules at [`Fields`].
            pub(crate) fn new(fields: &Fields) -> Self {
                Self(wire::encode(Self::KIND, fields))
            }

            /// The contents.
            pub(crate) fn fields(&self) -> Fields {
                wire::decode(&self.0)
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

        /// The text form.
        impl fmt::Display for $Handle {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                text::write(Self::KIND, &self.0, f)
            }
        }

        /// Reads the text form; white space around it does not matter.
        impl FromStr for $Handle {
            type Err = HandleError;

            fn from_str(text: &str) -> Result<Self, HandleError> {
                Self::from_bytes(&text::decode_as(text, Self::KIND)?)
            }
        }

        /// The contents without the secret.
        impl fmt::Debug for $Handle {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($Handle)).field(&self.fields()).finish()
            }
        }
    };
}

/// What only handles of memory tell.
macro_rules! memory_getters {
    ($Handle:ident) => {
        impl $Handle {
            /// Bytes shared; never 0.
            #[allow(clippy::len_without_is_empty, reason = "no handle shares nothing")]
            pub fn len(&self) -> u64 {
                self.fields().length
            }

            /// Whether the importer can only read the memory.
            pub fn is_read_only(&self) -> bool {
                self.fields().read_only
            }
        }
    };
}

handle_type! {
    /// Names a range of an allocation in another process; opening it maps the range.
    MemoryHandle, HandleKind::Memory
}
handle_type! {
    /// Names physical memory of another process; the importer maps it where it likes.
    PhysicalMemoryHandle, HandleKind::PhysicalMemory
}
handle_type! {
    /// Names an event of another process; both sides signal it and wait on it.
    EventHandle, HandleKind::Event
}
memory_getters!(MemoryHandle);
memory_getters!(PhysicalMemoryHandle);

/// A handle whose kind is known only when it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AnyHandle {
    /// A range of an allocation.
    Memory(MemoryHandle),
    /// Physical memory.
    PhysicalMemory(PhysicalMemoryHandle),
    /// An event.
    Event(EventHandle),
}

impl AnyHandle {
    /// Checks `bytes` and takes them as a handle of the kind that they say; every [`HandleError`]
    /// but [`WrongKind`](HandleError::WrongKind) and [`BadText`](HandleError::BadText) is possible.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HandleError> {
        let (bytes, kind) = wire::parse_any(bytes)?;
        Ok(match kind {
            HandleKind::Memory => Self::Memory(MemoryHandle(bytes)),
            HandleKind::PhysicalMemory => Self::PhysicalMemory(PhysicalMemoryHandle(bytes)),
            HandleKind::Event => Self::Event(EventHandle(bytes)),
        })
    }

    /// The bytes to send to another process.
    pub const fn as_bytes(&self) -> &[u8; HANDLE_SIZE] {
        match self {
            Self::Memory(handle) => handle.as_bytes(),
            Self::PhysicalMemory(handle) => handle.as_bytes(),
            Self::Event(handle) => handle.as_bytes(),
        }
    }

    /// What the handle refers to.
    pub const fn kind(&self) -> HandleKind {
        match self {
            Self::Memory(_) => HandleKind::Memory,
            Self::PhysicalMemory(_) => HandleKind::PhysicalMemory,
            Self::Event(_) => HandleKind::Event,
        }
    }

    /// What the handle says, in words, without opening anything and without the secret.
    ///
    /// `local_host` is the identity of the running kernel, if known; with it the explanation says
    /// whether the handle can be opened on this machine.
    pub fn explain(&self, local_host: Option<u64>) -> Explanation {
        Explanation::new(self.kind(), &self.fields(), local_host)
    }

    pub(crate) fn fields(&self) -> Fields {
        wire::decode(self.as_bytes())
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

/// The text form.
impl fmt::Display for AnyHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::write(self.kind(), self.as_bytes(), f)
    }
}

/// Reads the text form of any kind; white space around it does not matter.
impl FromStr for AnyHandle {
    type Err = HandleError;

    fn from_str(text: &str) -> Result<Self, HandleError> {
        let (kind, bytes) = text::decode(text)?;
        // The prefix decides, so that a handle under another kind's prefix is refused.
        Ok(match kind {
            HandleKind::Memory => MemoryHandle::from_bytes(&bytes)?.into(),
            HandleKind::PhysicalMemory => PhysicalMemoryHandle::from_bytes(&bytes)?.into(),
            HandleKind::Event => EventHandle::from_bytes(&bytes)?.into(),
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
