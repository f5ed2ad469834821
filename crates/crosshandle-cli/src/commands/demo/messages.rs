//! The messages of the two processes over the pipes.

use super::measure::{Bandwidth, Opens};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The first message of the first process: its objects and the settings.
#[derive(Serialize, Deserialize)]
pub(super) struct Offer {
    /// Handle of the memory, as text.
    pub(super) memory: String,
    /// Handle of the first process's event, as text.
    pub(super) event: String,
    pub(super) rounds: u32,
    pub(super) time_limit: Duration,
    /// Processors on which the two sides measure round trips.
    pub(super) cpus: Option<[usize; 2]>,
    /// The second process's device, if it is not that of the memory.
    pub(super) device: Option<String>,
    /// The first process's id.
    pub(super) pid: u32,
}

/// The answer of the second process: everything is open, and this is its event.
#[derive(Serialize, Deserialize)]
pub(super) struct Answer {
    /// Handle of the second process's event, as text.
    pub(super) event: String,
    /// The device that it uses.
    pub(super) device: String,
    pub(super) opens: Opens,
}

/// The report of the second process: everything is done.
#[derive(Serialize, Deserialize)]
pub(super) struct Done {
    /// Number of bytes that it has verified.
    pub(super) verified: u64,
    /// Number of signals that it has waited for.
    pub(super) signals: u64,
    pub(super) bandwidth: Bandwidth,
}

/// The last message of the first process: there is nothing more to do.
#[derive(Serialize, Deserialize)]
pub(super) struct Goodbye {}
