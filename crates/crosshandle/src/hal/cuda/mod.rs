//! NVIDIA GPUs, through the CUDA driver.
//!
//! Device memory is made with the driver's virtual memory management, whose allocations are
//! descriptors that the driver counts. Host memory is the host backend's, registered with the
//! driver. Streams wait for and signal the words of events directly.
//!
//! From the lowest layer up: `driver` (the driver's calls as methods), `scheduler` (admission of
//! waits, and the thread that looks after streams), `device` (a GPU in one of the driver's
//! contexts), `memory`, `image`, `program`, `queue`, and `backend` with `native`, which implement the
//! contract of `hal`.

mod backend;
mod device;
mod driver;
mod image;
mod memory;
mod native;
mod program;
mod queue;
mod scheduler;
#[cfg(test)]
mod tests;
mod tuning;

pub(crate) use backend::CudaBackend;

#[cfg(test)]
mod absence {
    use super::CudaBackend;
    use crate::hal::Backend;

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
