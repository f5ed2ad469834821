//! The messages that the demo's two processes exchange over pipes.

use super::measure::{Bandwidth, Opens};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The first process's offer: the objects that it shares, and the parameters of the demo.
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
    /// Device of the second process. `None` means the memory's device.
    pub(super) device: Option<String>,
    /// Process ID of the first process.
    pub(super) pid: u32,
}

/// The second process's reply after it has opened all objects. It contains the second process's own
/// event.
#[derive(Serialize, Deserialize)]
pub(super) struct Reply {
    /// Handle of the second process's event, as text.
    pub(super) event: String,
    /// Device that the second process uses.
    pub(super) device: String,
    pub(super) opens: Opens,
}

/// The second process's message after it has finished.
#[derive(Serialize, Deserialize)]
pub(super) struct Done {
    /// Number of bytes that the second process has verified.
    pub(super) verified: u64,
    /// Number of signals that the second process has waited for.
    pub(super) signals: u64,
    pub(super) bandwidth: Bandwidth,
}

/// The first process's last message, after which the second process may end.
#[derive(Serialize, Deserialize)]
pub(super) struct Goodbye {}
