//! Safe, thin wrappers of the operating system, with one topic per module. [`threads`] starts every
//! thread of the library.
//!
//! Internal to `crosshandle`: this crate promises no stable interface.

#![allow(missing_docs, rustdoc::private_intra_doc_links)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod threads;

pub mod arc_cell;
pub mod cgroup;
pub mod descriptor;
pub mod descriptor_table;
#[cfg(fault_steps)]
pub mod fault_steps;
pub mod fence;
pub mod fork;
pub mod futex;
pub mod lock;
pub mod mapping;
pub mod memfd;
pub mod process;
pub mod sleepers;
pub mod socket;
pub mod tuning;
pub mod yields;
