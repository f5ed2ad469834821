//! Constants of time of the system's layer.

use std::time::Duration;

/// Time between two looks at several words where the kernel cannot watch all of them. Halved: twice
/// the processor time of such waits. Doubled: they end that much later.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The longest timeout that a socket is given, a year: the kernel's counter has an end. Halved or
/// doubled: nothing.
pub(super) const MAX_SOCKET_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Time between two looks whether the program has interrupted a wait for another process. Halved: twice the
/// processor time of such waits. Doubled: Ctrl-C in Python ends a call that much later.
pub(super) const INTERRUPT_INTERVAL: Duration = Duration::from_millis(50);
