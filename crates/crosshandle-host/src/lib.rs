//! The host as a device, with memory in memfd files and queues that are threads. An OpenCL runtime
//! for the CPU, which is found at run time, compiles and runs its kernels.
//!
//! Internal to `crosshandle`: this crate promises no stable interface.

#![allow(missing_docs, rustdoc::private_intra_doc_links)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod device;
mod info;
mod program;
mod queue;
mod tuning;
mod work;

pub use device::HostBackend;
