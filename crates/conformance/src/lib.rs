//! A conformance suite for every backend: what sharing between processes promises, tested with real
//! processes.
//!
//! A [`Case`] is one rule. It gets a [`Harness`], which names the device under test and starts
//! *peers*: processes of the program `crosshandle-peer` that execute commands line by line. Every
//! answer has a deadline, and a late peer is killed, so that no case hangs.
//!
//! The tests of this package run the suite on the host, each case as a test of its own. The program
//! `conformance` runs it on any device, or between two (`--device cuda:0 --peer-device cuda:1`),
//! and needs only `crosshandle-peer` beside it.
//!
//! A [`Transfer`] writes and reads memory also where the host cannot access it, so that most cases
//! run unchanged everywhere. A device's capabilities say what it cannot do; only that is skipped.

pub mod attackers;
mod cases;
mod failure;
#[doc(hidden)]
pub mod faults;
mod harness;
mod kernels;
mod pattern;
mod peer;
mod procfs;
#[doc(hidden)]
pub mod raw;
mod suite;
#[doc(hidden)]
pub mod tamper;

pub use failure::{Failure, Verdict};
pub use harness::{Devices, Harness, SLOWDOWN, Transfer, block_on, is_pending, next, slowdown};
pub use kernels::Kernels;
pub use pattern::pattern;
pub use peer::{Peer, PeerOptions, Pending, Refused, Reply};
pub use procfs::Usage;
pub use suite::{Case, Outcome, find, run, suite};
