//! Messages between the two processes, over the pipes.

use super::measure::{Bandwidth, Opens};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Message of the first process: the objects that it shares, and how to use them.
#[derive(Serialize, Deserialize)]
pub(super) struct Offer {
    /// Handle of the memory, as text.
    pub(super) memory: String,
    /// Handle of the first process's event, as text.
    pub(super) event: String,
    /// Number of rounds in which all of the memory is written and verified.
    pub(super) rounds: u32,
    /// Maximum time to wait for the other process's next step.
    pub(super) timeout: Duration,
    /// Processors on which the first and the second process measure round trips.
    pub(super) cpus: Option<[usize; 2]>,
    /// Device of the second process, if it differs from the memory's device.
    pub(super) device: Option<String>,
    /// Process ID of the first process.
    pub(super) pid: u32,
}

/// Message of the second process: it has opened all objects, and shares its own event.
#[derive(Serialize, Deserialize)]
pub(super) struct Answer {
    /// Handle of the second process's event, as text.
    pub(super) event: String,
    /// Device that the second process uses.
    pub(super) device: String,
    pub(super) opens: Opens,
}

/// Message of the second process: it has finished.
#[derive(Serialize, Deserialize)]
pub(super) struct Done {
    /// Number of bytes that the second process has verified.
    pub(super) verified: u64,
    /// Number of signals that the second process has waited for.
    pub(super) signals: u64,
    pub(super) bandwidth: Bandwidth,
}

/// Message of the first process: the second process may end.
#[derive(Serialize, Deserialize)]
pub(super) struct Goodbye {}
