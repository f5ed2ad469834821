//! What the two processes say to each other over the pipes.

use super::measure::{Bandwidth, Opens};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// First process: what is shared, and what to do with it.
#[derive(Serialize, Deserialize)]
pub(super) struct Offer {
    /// Handle of the memory, as text.
    pub(super) memory: String,
    /// Handle of the first process's event, as text.
    pub(super) event: String,
    pub(super) rounds: u32,
    pub(super) patience: Duration,
    /// On which processors the two sides measure round trips.
    pub(super) cpus: Option<[usize; 2]>,
    /// The second process's device, if it is not that of the memory.
    pub(super) device: Option<String>,
    /// The first process's id.
    pub(super) pid: u32,
}

/// Second process: all is open, and here is its event.
#[derive(Serialize, Deserialize)]
pub(super) struct Answer {
    /// Handle of the second process's event, as text.
    pub(super) event: String,
    /// The device that it uses.
    pub(super) device: String,
    pub(super) opens: Opens,
}

/// Second process: all is done.
#[derive(Serialize, Deserialize)]
pub(super) struct Done {
    /// Bytes that it has verified.
    pub(super) verified: u64,
    /// Signals that it has waited for.
    pub(super) signals: u64,
    pub(super) bandwidth: Bandwidth,
}

/// First process: that was all.
#[derive(Serialize, Deserialize)]
pub(super) struct Goodbye {}
