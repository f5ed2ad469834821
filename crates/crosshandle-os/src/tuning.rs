//! Time constants of the layer that wraps the operating system.

use std::time::Duration;

/// Interval at which a thread polls several words if the kernel cannot watch all of them.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Maximum timeout that is set on a socket, one year, because the kernel's counter is limited.
pub(super) const MAX_SOCKET_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Interval at which a wait for another process checks whether the program has interrupted it. It
/// limits how late Ctrl-C in Python ends a call.
pub(super) const INTERRUPT_INTERVAL: Duration = Duration::from_millis(50);
