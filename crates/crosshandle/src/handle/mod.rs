//! Handles: small plain values that name shared memory or a shared event.
//!
//! A handle is [`HANDLE_SIZE`] bytes. They may be copied, compared, logged and sent in any way to
//! another process on the same machine, which opens them and then holds the same object. There is
//! one type for each kind of object: [`MemoryHandle`], [`PhysicalMemoryHandle`] and
//! [`EventHandle`]; [`AnyHandle`] is for those who do not know yet what they were given.
//!
//! A value of these types is always well-formed: `from_bytes` and `FromStr` check every field and
//! the integrity tag before they return one, and say in a [`HandleError`] what was wrong. Whether
//! the object still exists is known only when the handle is opened.
//!
//! # Two forms
//! * **Bytes**, for programs: little-endian, versioned, the same layout for every kind.
//! * **Text**, for shells and logs: one word of [`TEXT_LENGTH`] characters, `Display` and
//!   `FromStr`. It starts with `xhm1.` (memory), `xhp1.` (physical memory) or `xhe1.` (event), and
//!   goes on with the bytes in base64url without padding. Every handle has exactly one text.
//!
//! # A handle is a capability
//! Its bytes contain a secret of the exporting context, which the exporter asks for before it
//! hands anything out. Both forms show it to whoever sees them; `Debug` and [`Explanation`] do not.
//!
//! Everything here is pure computation: no input or output, no global state. All types are
//! `Send + Sync`.

mod error;
mod explain;
mod fields;
mod text;
mod types;
mod wire;

#[cfg(test)]
mod tests;

pub use error::HandleError;
pub use explain::{Explanation, SharedRange};
pub use fields::{BackendKind, DeviceUuid, Fields, HandleKind, Secret, UnknownBackend};
pub use text::TEXT_LENGTH;
pub use types::{AnyHandle, EventHandle, MemoryHandle, PhysicalMemoryHandle};
pub use wire::{HANDLE_SIZE, VERSION};
