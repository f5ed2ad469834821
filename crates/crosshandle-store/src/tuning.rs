//! Time limits, sizes and counts that several files use.

use std::time::Duration;

/// Number of bytes that are copied out of shared memory at a time for hashing. The bytes fit into
/// the first-level cache, and consist of enough blocks for the parallel hash.
pub(crate) const HASH_BYTES: usize = 32 << 10;

/// Default time to wait for the end of an update when a model is opened or read. With a shorter
/// time, large updates make readers fail. With a longer time, a stopped writer blocks readers
/// longer.
pub(crate) const UPDATE_PATIENCE: Duration = Duration::from_secs(30);
