//! Intel GPUs, through Level Zero.
//!
//! Memory is the driver's own (USM), shared through the driver's handles: the descriptor inside is
//! carried by the exchange and put in place at the importer, the other bytes cross as a note. Queues
//! are immediate command lists in order, each with a thread that looks after it.

mod device;
mod driver;
mod event;
mod gpu;
mod info;
mod ipc_handle;
mod memory;
mod native;
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
