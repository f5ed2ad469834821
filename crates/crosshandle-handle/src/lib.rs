//! Handles and bundles as bytes and text: small plain values that name shared memory and events.
//! This crate is pure computation, without input, output or global state.
//!
//! The module `handle` of `crosshandle` explains handles and their two forms to users. This crate
//! is internal to `crosshandle` and promises no stable interface.

#![allow(missing_docs)]
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

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
pub use fabric::DRIVER_HANDLE_SIZE;
pub use fabric::{FABRIC_HANDLE_SIZE, FabricHandle};
pub use fields::{BackendKind, DeviceUuid, Fields, HandleKind, Key, UnknownBackend};
pub use types::{AnyHandle, ChannelHandle, EventHandle, MemoryHandle, PhysicalMemoryHandle};
pub use wire::{EVENT_HANDLE_SIZE, MEMORY_HANDLE_SIZE, VERSION};
