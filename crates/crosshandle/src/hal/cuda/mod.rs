//! NVIDIA GPUs, through the CUDA driver.
//!
//! Device memory is made with the driver's virtual memory management, whose allocations are
//! descriptors that the driver counts. Host memory is the host backend's, made known to the
//! driver. Streams wait for and signal the words of events directly.

mod backlog;
mod call;
mod caretaker;
mod device;
mod driver;
mod entry;
mod foreign;
mod gate;
mod held;
mod image;
mod info;
mod kernel;
mod lane;
mod lanes;
mod leftovers;
mod memory;
mod native;
mod pinned;
mod program;
mod queue;
mod range;
mod staging;
mod stock;
#[cfg(test)]
mod tests;
mod times;
mod turns;
mod waits;
mod words;
mod work;

pub(crate) use device::CudaBackend;

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
