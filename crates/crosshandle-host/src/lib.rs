//! The host as a device, with memory in memfd files and queues that are threads. An OpenCL runtime
//! for the CPU, which is found at run time, compiles and runs its kernels.
//!
//! The modules have the names that all backends use, and `crosshandle-hal` explains them. Host
//! memory is in `crosshandle_hal::common::host_memory`, because other backends use it too.
//!
//! Internal to `crosshandle`: this crate promises no stable interface.

#![allow(missing_docs, rustdoc::private_intra_doc_links)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod context;
mod device;
mod image;
mod info;
mod native;
mod program;
mod queue;

pub use device::HostBackend;
