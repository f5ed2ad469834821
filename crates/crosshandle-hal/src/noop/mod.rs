//! A complete backend without a device: commands complete and signal, but compute nothing.
//!
//! It has two uses. Tests of the object layer run on it without a driver. A new backend starts as a
//! copy of it, and replaces one method after the other by calls of its driver:
//! - `device.rs` has the driver and its one device.
//! - `context.rs` has contexts. Memory consists of memfd files (`common::host_memory`), so other
//!   processes can open it.
//! - `queue.rs` has queues without a thread.
//!
//! The optional parts of the contract are absent: programs, images, graphs of a driver, native
//! mirrors, and views of native objects.

mod context;
mod device;
mod queue;

pub use context::NoopContext;
pub use device::NoopBackend;
pub use queue::NoopQueue;
