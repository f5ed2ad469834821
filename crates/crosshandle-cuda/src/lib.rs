//! NVIDIA GPUs, through the CUDA driver, which is loaded at run time. No other crate of the library
//! depends on the driver's bindings.
//!
//! Device memory is allocated with the driver's virtual memory management, and each allocation is a
//! descriptor that the driver counts. Host memory comes from the host backend and is registered
//! with the driver. Streams wait for the words of events and signal them directly.
//!
//! The modules, from the lowest layer up:
//! - `driver`: the driver's calls as methods.
//! - `scheduler`: the admission of waits, and the thread that tends queues.
//! - `device` and `info`: the backend, and a GPU in one of the driver's contexts.
//! - `context`, `memory`, `image`, `program`, `queue` and `native`, as the contract of
//!   `crosshandle-hal` explains them.
//!
//! Internal to `crosshandle`: this crate promises no stable interface.

#![allow(missing_docs, rustdoc::private_intra_doc_links)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod context;
mod device;
mod driver;
mod image;
mod info;
mod memory;
mod native;
mod program;
mod queue;
mod scheduler;
#[cfg(test)]
mod tests;
mod tuning;

pub use device::CudaBackend;

#[cfg(test)]
mod absence {
    use super::CudaBackend;
    use crosshandle_hal::Backend;

    #[test]
    fn a_machine_without_the_driver_has_no_device_and_says_why() {
        match CudaBackend.status() {
            Ok(found) => assert!(found.contains("CUDA"), "{found}"),
            Err(reason) => {
                assert!(CudaBackend.devices().is_empty());
                assert!(reason.contains("driver"), "{reason}");
            }
        }
    }
}
