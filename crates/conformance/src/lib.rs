//! A conformance suite for every backend. It tests the guarantees of sharing between processes with
//! real processes.
//!
//! A [`Case`] is one rule. It receives a [`Harness`], which names the device under test and starts
//! *peers*. A peer is a process of the program `crosshandle-peer`, which executes commands line by
//! line. Every reply has a deadline, and a late peer is killed, so no case hangs.
//!
//! The tests of this package run the suite on the host, with one test per case. The program
//! `conformance` runs it on any device, or between two devices
//! (`--device cuda:0 --peer-device cuda:1`), and needs only `crosshandle-peer` in its directory.
//!
//! A [`Transfer`] writes and reads memory even if the host cannot access it, so most cases run
//! unchanged on every device. A device's capabilities say what it cannot do. Only cases that need a
//! missing capability are skipped.

/// Asserts that a result is the named error of the library.
macro_rules! fails {
    ($result:expr, $error:ident) => {
        match $result.map(|_| ()) {
            result => assert!(
                matches!(result, Err(crosshandle::Error::$error { .. })),
                "{result:?}"
            ),
        }
    };
}

pub mod attackers;
mod cases;
mod device_code;
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

pub use device_code::{DeviceCode, DeviceResult};
pub use failure::{Failure, Verdict};
pub use harness::{Devices, Harness, SLOWDOWN, Transfer, block_on, is_pending, next, slowdown};
pub use kernels::Kernels;
pub use pattern::pattern;
pub use peer::{Peer, PeerOptions, Pending, Refused, Reply};
pub use procfs::Usage;
pub use suite::{Case, Outcome, find, run, run_replays, suite};
