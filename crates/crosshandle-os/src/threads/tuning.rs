//! Times and counts that control the threads.

use std::time::Duration;

/// Maximum number of epoll events that the exchange thread receives in one system call.
pub(super) const EPOLL_EVENTS: usize = 64;

/// Maximum number of sources that the exchange thread calls before it asks the kernel again which
/// ones are ready. With a larger value, new requests wait for longer. With a smaller one, the
/// thread makes more system calls under load.
pub(super) const MAX_TURNS: usize = 8;

/// Time that a source rests when it asks for a rest ([`Next::Rest`](super::exchange::Next)),
/// usually because the process has no descriptors left. Also the time that the exchange thread
/// rests if it cannot wait.
pub(super) const SOURCE_REST: Duration = Duration::from_millis(10);
