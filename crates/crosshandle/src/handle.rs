//! Handles and bundles as bytes and text: small plain values that name shared memory and events.
//!
//! A handle of an event has [`EVENT_HANDLE_SIZE`] bytes, and every other handle has
//! [`MEMORY_HANDLE_SIZE`] bytes. A program may copy, compare and log handles, and send them in any
//! way to another process on the same machine. That process opens a handle, and then holds the same
//! object. There is one type for each kind of object: [`MemoryHandle`], [`PhysicalMemoryHandle`],
//! [`EventHandle`] and [`ChannelHandle`]. [`AnyHandle`] is for a program that does not know the
//! kind yet.
//!
//! Values of these types are always well-formed. `from_bytes` and `FromStr` check every field and
//! the integrity tag, and report a fault as a [`HandleError`]. Only opening a handle shows whether
//! its object still exists.
//!
//! # Two forms
//! * **Bytes**, for programs: little-endian, versioned. All kinds start with the same fields.
//! * **Text**, for shells and logs: one word of [`HandleKind::text_length`] characters, `Display`
//!   and `FromStr`. The word starts with `xhm3.` (memory), `xhp3.` (physical memory), `xhe3.`
//!   (event) or `xhc3.` (channel), and continues with the bytes in base64url without padding. Every
//!   handle has exactly one text.
//!
//! # A handle is a capability
//! A handle contains a [`Key`], which is a random number for one object and one kind of access. An
//! importer presents the key to the exporter, and the exporter shares nothing without it. Both
//! forms of a handle reveal the key. `Debug` and [`Explanation`] do not.
//!
//! # Fabrics
//! A [`FabricHandle`] has a separate layout. It contains the driver's handle of memory that other
//! hosts of an NVLink fabric open directly.
//!
//! # Bundles
//! A [`Bundle`](bundle::Bundle) carries several handles, each with the layout of an array in its
//! memory.
//!
//! All types are `Send + Sync`.

pub use crate::api::bundle::PackedBundle;
pub use crosshandle_handle::{
    AnyHandle, BackendKind, Bounded, ChannelHandle, DeviceUuid, EVENT_HANDLE_SIZE, EventHandle,
    Explanation, FABRIC_HANDLE_SIZE, FabricHandle, Fields, HandleError, HandleKind, Key,
    MEMORY_HANDLE_SIZE, MemoryHandle, PhysicalMemoryHandle, SharedRange, UnknownBackend, VERSION,
    bundle,
};
