//! Messages that the two processes send each other over the pipes.

use super::measure::{Bandwidth, Opens};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Message of the first process: the objects that it shares, and what to do with them.
#[derive(Serialize, Deserialize)]
pub(super) struct Offer {
    /// Handle of the memory, as text.
    pub(super) memory: String,
    /// Handle of the first process's event, as text.
    pub(super) event: String,
    /// Rounds of writing and verifying all of the memory.
    pub(super) rounds: u32,
    /// Time for which one process waits for the other's next step.
    pub(super) timeout: Duration,
    /// Processors on which the first and the second process measure round trips.
    pub(super) cpus: Option<[usize; 2]>,
    /// Device of the second process, if it is not the memory's.
    pub(super) device: Option<String>,
    /// Process id of the first process.
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

/// Message of the second process: it has done its work.
#[derive(Serialize, Deserialize)]
pub(super) struct Done {
    /// Bytes that the second process has verified.
    pub(super) verified: u64,
    /// Signals that the second process has waited for.
    pub(super) signals: u64,
    pub(super) bandwidth: Bandwidth,
}

/// Message of the first process: the second process may end.
#[derive(Serialize, Deserialize)]
pub(super) struct Goodbye {}
