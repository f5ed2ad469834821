//! The event protocol: counters in shared words, with signals, waits and recovery. It sees the
//! machine only through a [`Platform`], so model checkers can run it on a model. The module
//! [`open_count`] has the rule for the reuse of records, which is checked in the same way.
//!
//! Internal to `crosshandle`: this crate promises no stable interface.

#![allow(missing_docs, rustdoc::private_intra_doc_links)]
#![deny(unsafe_code, clippy::disallowed_types)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod channel;
pub mod open_count;
pub mod platform;
mod protocol;

pub use platform::{Awaited, Platform};
pub use protocol::*;
