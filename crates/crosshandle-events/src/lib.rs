//! The event protocol: counters in shared words, with signals, waits and recovery. The protocol
//! sees the machine only through its platform, so that model checkers can run it on a model.
//!
//! Internal to `crosshandle`: this crate promises no stable interface.

#![allow(missing_docs, rustdoc::private_intra_doc_links)]
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod platform;
mod protocol;

pub use protocol::*;
