//! The event protocol: counters in shared words, with signals, waits and recovery.
//!
//! Internal to `crosshandle`: this crate promises no stable interface.

#![allow(missing_docs)]
#![deny(unsafe_code)]

pub mod platform;
mod protocol;

pub use protocol::*;
