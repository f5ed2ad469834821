//! The host as a device, with memory in memfd files and queues that are threads.

mod device;
mod info;
mod memory;
mod program;
mod queue;
mod tuning;
mod work;

pub(crate) use device::HostBackend;
pub(crate) use memory::HostSegment;
