//! Intel GPUs, through Level Zero.
//!
//! - `driver`: the driver's calls as methods that return `Result`; its contexts, lists and events.
//! - `gpu`, `info`, `device`: GPUs, their descriptions and limits, and contexts on them.
//! - `memory`: the driver's own memory (USM) and physical memory.
//! - `ipc_handle`: the driver's handles for other processes. The broker carries the descriptor in
//!   them, the other bytes cross as a blob, and the importer puts its descriptor's number in place.
//! - `event`: counter-based events, as native mirrors of events of this library.
//! - `program`: programs, their kernels and launches.
//! - `image`: images and samplers, and copies of pixels.
//! - `queue`: immediate in-order command lists, each with a thread while it has commands.
//! - `native`: the driver's objects as programs see and give them.
//! - `tuning`: all times and counts, with their reasons.

mod device;
mod driver;
mod event;
mod gpu;
mod image;
mod info;
mod ipc_handle;
mod memory;
mod native;
mod program;
mod queue;
mod tuning;

pub(crate) use device::LevelZeroBackend;

#[cfg(test)]
mod tests;

#[cfg(test)]
mod absence {
    use super::LevelZeroBackend;
    use crate::hal::Backend;

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
