//! Handles: small plain values that name shared memory or a shared event.
//!
//! A handle is [`HANDLE_SIZE`] bytes. A program may copy, compare and log them, and send them in any
//! way to another process on the same machine, which opens the handle and then holds the same
//! object. There is one type for each kind of object: [`MemoryHandle`], [`PhysicalMemoryHandle`]
//! and [`EventHandle`]. [`AnyHandle`] is for a program that does not know the kind yet.
//!
//! A value of these types is always well-formed: `from_bytes` and `FromStr` check every field and
//! the integrity tag first, and report a fault as a [`HandleError`]. Only opening a handle shows
//! whether its object still exists.
//!
//! # Two forms
//! * **Bytes**, for programs: little-endian, versioned, the same layout for every kind.
//! * **Text**, for shells and logs: one word of [`TEXT_LENGTH`] characters, `Display` and
//!   `FromStr`. It starts with `xhm2.` (memory), `xhp2.` (physical memory) or `xhe2.` (event).
//!   The bytes in base64url without padding follow. Every handle has exactly one text.
//!
//! # A handle is a capability
//! Its bytes contain a [`Key`]: a random number of this object and this kind of access alone. An
//! importer presents it to the exporter, which gives nothing without it. Both forms of a handle
//! reveal the key; `Debug` and [`Explanation`] do not.
//!
//! # Fabrics
//! A [`FabricHandle`] is another kind of thing, with a layout of its own: the driver's handle of memory that other hosts
//! of an NVLink fabric open directly.
//!
//! # Bundles
//! A [`bundle`] carries several handles at once, with the layout of an array in the memory of each.
//!
//! Everything here is pure computation: no input or output, no global state. All types are
//! `Send + Sync`.

mod bounded;
pub mod bundle;
mod error;
mod explain;
mod fabric;
mod fields;
mod text;
mod types;
mod wire;

#[cfg(test)]
mod tests;

#[doc(hidden)]
pub use bounded::Bounded;
pub use error::HandleError;
pub use explain::{Explanation, SharedRange};
pub(crate) use fabric::DRIVER_HANDLE_SIZE;
pub use fabric::{FABRIC_HANDLE_SIZE, FabricHandle};
pub use fields::{BackendKind, DeviceUuid, Fields, HandleKind, Key, UnknownBackend};
pub use text::TEXT_LENGTH;
pub use types::{AnyHandle, EventHandle, MemoryHandle, PhysicalMemoryHandle};
pub(crate) use wire::{COMMON_ARENA, ISOLATED_ARENA};
pub use wire::{HANDLE_SIZE, VERSION};
