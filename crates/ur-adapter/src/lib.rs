//! The Unified Runtime (UR) adapter: UR's entry points, implemented with the objects of
//! `crosshandle`.
//!
//! A shared library of a few lines ([`export_adapter!`]) turns this crate into an adapter. The
//! stock UR loader and the SYCL runtime load that library. The entry points do not depend on the
//! backend. The [`Description`] and the properties of the devices express the differences between
//! backends.
//!
//! # Modules
//! Each UR object, or family of calls, has one file or folder. It contains the object, its entry
//! points, and the table through which the loader finds them. The modules, from low level to high
//! level:
//!
//! | module | contents |
//! |---|---|
//! | `tuning` | timeouts and limits |
//! | `abi` | the boundary with C: entry points (`boundary`), handles (`object`), failures, queries, native handles, stubs |
//! | `discovery` | the adapter, its platform, its devices, and their properties |
//! | `context` | contexts and their contents: allocations, pools, reserved addresses, the bytes of handles |
//! | `queue` | queues, and functions that queues call |
//! | `event` | events and callbacks |
//! | `memory` | unified shared memory (`usm`), buffers, images, bindless images, physical and virtual memory |
//! | `ipc` | handles that cross processes |
//! | `program` | programs, and their kernels |
//! | `enqueue` | commands, and the objects that record them: command buffers and graphs |
//! | `sampler` | samplers |
//! | `table` | all tables of entry points, and the functions by which the loader fetches them |
//!
//! # Rules
//! The loader may pass any values that C can express. The adapter checks pointers for null, and
//! enumerations and sizes for validity. The caller is responsible for passing only null or the
//! handles of living objects, as UR specifies. All entry points may be called from any thread. The
//! crate starts no threads. Callbacks and late write-backs run in the background service of
//! `crosshandle`.
//!
//! The Unified Runtime specification defines the meaning of each UR call. These comments do not
//! repeat it.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod abi;
mod context;
mod discovery;
mod enqueue;
mod event;
mod ipc;
mod memory;
mod program;
mod queue;
mod sampler;
pub mod table;
#[cfg(test)]
mod testing;
mod tuning;

pub use abi::description::{Description, REPORTED_BACKEND_VARIABLE};
pub use ipc::by_pointer::{USM_FUNCTIONS, USM_FUNCTIONS_VERSION, UsmFunctions};
#[doc(hidden)]
pub use unified_runtime_sys as sys;
