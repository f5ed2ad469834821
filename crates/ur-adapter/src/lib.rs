//! The Unified Runtime (UR) adapter: UR's entry points over the objects of `crosshandle`.
//!
//! A shared library of a few lines ([`export_adapter!`]) makes an adapter of it that the stock UR
//! loader and the SYCL runtime load. The entry points don't know which backend they run on; what
//! differs is in the [`Description`] and in what the device says of itself.
//!
//! # Where things are
//! One file or folder for each UR object or family of calls, with the object, its entry points and
//! the table in which the loader finds them. From low to high:
//!
//! | module | what |
//! |---|---|
//! | `tuning` | times and limits that were chosen |
//! | `abi` | the boundary with C: how entry points are made (`boundary`), handles (`object`), failures, queries, native handles, stubs |
//! | `discovery` | the adapter, its platform, its devices and what these answer |
//! | `context` | contexts, and what they hold: allocations, pools, reserved addresses, handles' bytes |
//! | `queue` | queues, and functions that queues call |
//! | `event` | events and callbacks |
//! | `memory` | unified shared memory (`usm`), buffers, images, bindless images, physical and virtual memory |
//! | `ipc` | handles that cross processes |
//! | `program` | programs, and their kernels |
//! | `enqueue` | commands, and what records them: command buffers and graphs |
//! | `sampler` | samplers |
//! | `table` | all tables together, and how the loader gets them |
//!
//! # Rules
//! The loader may pass anything that C can: pointers are checked for null, enumerations and sizes
//! for validity. Handles that are neither null nor alive are the caller's fault, as in all of UR.
//! All entry points may be called from any thread. The crate starts no thread: callbacks and late
//! write-backs run in the background service of `crosshandle`.
//!
//! What each UR call means is written in the Unified Runtime specification, and not repeated here.

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
