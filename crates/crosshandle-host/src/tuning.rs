//! Constants of the host backend.

use std::time::Duration;

/// Maximum number of bytes of a command that may run on the submitting thread, whose call then
/// takes up to 2 µs longer. Waking the queue's thread takes longer than such a copy.
pub(super) const INLINE_COMMAND_BYTES: usize = 64 << 10;

/// Number of a queue's latest launches that are searched for the signal that another launch waits
/// for. A launch that waits for an older one wakes the queue's thread.
pub(super) const SEARCHED_LAUNCHES: usize = 16;

/// Time for which a queue's thread leaves finished launches uncollected if no event waits for them
/// and more may follow. Waking the thread for each launch takes longer than a small kernel. The
/// objects that the kernels used are kept that much longer.
pub(super) const COLLECT_INTERVAL: Duration = Duration::from_millis(1);
