//! Intel GPUs, through Level Zero, whose loader is loaded at run time. No other crate of the
//! library depends on the driver's bindings.
//!
//! - `driver`: the driver's calls as methods that return `Result`, and its contexts, lists and
//!   events.
//! - `device`, `info`, `context`: GPUs, their descriptions and limits, and contexts on them.
//! - `memory`: the driver's own memory (USM) and physical memory.
//! - `ipc_handle`: the driver's handles for other processes. The broker sends the descriptor that
//!   such a handle contains, and the remaining bytes are sent as a blob. The importer inserts the
//!   number of its own descriptor.
//! - `event`: counter-based events, used as native mirrors of this library's events.
//! - `program`: programs, their kernels and launches.
//! - `image`: images and samplers, and copies of pixels.
//! - `queue`: immediate in-order command lists. The first command of a list starts the list's
//!   thread.
//! - `native`: the driver's own objects, which programs can access and pass in.
//! - `tuning`: times and counts that several files use.
//!
//! Internal to `crosshandle`: this crate promises no stable interface.

#![allow(missing_docs, rustdoc::private_intra_doc_links)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod context;
mod device;
mod driver;
mod event;
mod image;
mod info;
mod ipc_handle;
mod memory;
mod native;
mod program;
mod queue;
mod tuning;

pub use device::LevelZeroBackend;

#[cfg(test)]
mod tests;

#[cfg(test)]
mod absence {
    use super::LevelZeroBackend;
    use crosshandle_hal::Backend;

    #[test]
    fn a_machine_without_the_loader_has_no_device_and_says_why() {
        match LevelZeroBackend.status() {
            Ok(found) => assert!(found.contains("Level Zero"), "{found}"),
            Err(reason) => {
                assert!(LevelZeroBackend.devices().is_empty());
                assert!(reason.contains("Level Zero"), "{reason}");
            }
        }
    }
}
