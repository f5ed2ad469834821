//! Constants of time and count.

use std::time::Duration;

/// Number of bytes that are copied out of shared memory at a time for hashing. They fit into the
/// first-level cache, and are many blocks of the hash, which it processes in parallel.
pub(crate) const HASH_BYTES: usize = 32 << 10;

/// Default time to wait for the end of an update when a model is opened or read. With less, large
/// updates make readers fail. With more, a stopped writer blocks readers longer.
pub(crate) const UPDATE_PATIENCE: Duration = Duration::from_secs(30);
