//! The Unified Runtime (UR) adapter: UR's entry points over the objects of `crosshandle`.
//!
//! A shared library of a few lines ([`export_adapter!`]) makes an adapter of it that the stock UR
//! loader and the SYCL runtime load. The entry points don't know which backend they run on; what
//! differs is in the [`Description`] and in what the device says of itself.
//!
//! # Where things are
//! One file or folder per UR object, with the object, its entry points and, last, the table in
//! which the loader finds them: `adapter`, `platform`, `device`, `context`, `queue`, `event`,
//! `enqueue`, `usm`, `buffer`, `physical_memory`, `virtual_memory`, `ipc`, `program`, `kernel`,
//! `sampler`. What has no
//! implementation answers through `stub`. Around them:
//!
//! - `boundary`: each entry point's way in and out. Nothing unwinds across it.
//! - `chain`: structures that callers append to others.
//! - `failure`: an error as a UR result, and the text of the latest one.
//! - `lock`: a lock for a few instructions.
//! - `object`: handles, which begin with the table's address, and their reference counts.
//! - `query`: answers to the `Get…Info` calls.
//! - `table`: all tables together, and how the loader gets them.
//!
//! # Rules
//! The loader may pass anything that C can: pointers are checked for null, enumerations and sizes
//! for validity. Handles that are neither null nor alive are the caller's fault, as in all of UR.
//! All entry points may be called from any thread.
//!
//! What each UR call means is written in the Unified Runtime specification, and not repeated here.

mod adapter;
mod boundary;
mod buffer;
mod chain;
mod context;
mod description;
mod device;
mod enqueue;
mod event;
mod failure;
mod ipc;
mod kernel;
mod lock;
mod log;
mod native;
mod object;
mod physical_memory;
mod platform;
mod program;
mod query;
mod queue;
mod sampler;
mod stub;
pub mod table;
mod unsupported;
mod usm;
mod virtual_memory;

pub use description::{Description, REPORTED_BACKEND_VARIABLE};
#[doc(hidden)]
pub use unified_runtime_sys as sys;
