//! The C interface of Crosshandle. `include/crosshandle.h` is generated from this crate by
//! `cargo xtask bindings`, and `docs/c.md` explains it to its users.
//!
//! Each function is a thin layer over the public objects of `crosshandle`: it checks its arguments,
//! calls a method, and converts the result. The file names are those of the objects.
//!
//! - `boundary` has the wrapper of all functions, and the conversion of arguments.
//! - `object` has the objects that C programs own, and detects closed and confused objects.
//! - `error` has the result codes, and the latest error of each thread.
//!
//! # Safety
//! All functions have the same contract, so their documentation does not repeat it. A C program
//! must keep these rules:
//!
//! - A pointer to an object of this library is null, or was returned by this library as an object
//!   of any kind. No other thread closes the object during the call.
//! - A pointer to a result is null or valid for a write of its type. No other thread accesses the
//!   result during the call.
//! - A pointer to a structure is null or valid for reads of its type, and so are the pointers in
//!   it.
//! - A pointer with a length is valid for that many elements, or the length is 0.
//! - A text is null, or ends with a zero byte. It does not change during the call.
//! - A function that adopts an object of a driver has the rules of the same function in
//!   `crosshandle`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// The types have the names that they have in C.
#![allow(non_camel_case_types)]
// The top comment has the contract of all functions.
#![allow(clippy::missing_safety_doc)]

mod awaiting;
mod boundary;
mod channel;
mod context;
mod device;
mod device_event;
mod dlpack;
mod error;
mod event;
mod handle;
mod holder;
mod memory;
mod native;
mod object;
mod queue;
mod version;

pub use awaiting::*;
pub use boundary::CROSSHANDLE_FOREVER;
pub use channel::*;
pub use context::*;
pub use device::*;
pub use device_event::*;
pub use dlpack::*;
pub use error::*;
pub use event::*;
pub use handle::*;
pub use holder::*;
pub use memory::*;
pub use native::*;
pub use queue::*;
pub use version::*;
