//! Time constants of the layer that wraps the operating system.

use std::time::Duration;

/// Interval at which a thread polls several words if the kernel cannot watch all of them.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(1);
