//! Time limits, sizes and counts that several files use.

use std::time::Duration;

/// Number of bytes that a thread reads at a time before it hashes them. The bytes are then still in
/// the second-level cache of the processor. With fewer, reading takes more calls. With more, the
/// bytes do not fit into caches of 1 MiB.
pub(crate) const PART_BYTES: usize = 512 << 10;

/// Number of bytes that are copied out of shared memory at a time for hashing. The bytes fit into
/// the first-level cache, and consist of enough blocks for the parallel hash.
pub(crate) const HASH_BYTES: usize = 32 << 10;

/// Number of pieces that a resumable load copies before it waits for the device and records their
/// hashes. With fewer, the device waits for the thread more often. With more, more bytes are read
/// again after a kill.
pub(crate) const NOTED_PIECES: usize = 8;

/// Maximum number of threads by default. With fewer, hashing takes longer than copying to a fast
/// GPU. More threads do not increase the memory bandwidth.
pub(crate) const MAX_THREADS: usize = 16;

/// Default size in bytes of each of a thread's two staging buffers. With smaller buffers the start
/// of each copy costs time. With larger buffers, the driver takes longer to allocate them, one
/// after the other.
pub(crate) const STAGE_BYTES: usize = 4 << 20;

/// Minimum and maximum size in bytes of parts and staging buffers that a program can choose.
pub(crate) const MIN_STEP_BYTES: usize = 4 << 10;
pub(crate) const MAX_STEP_BYTES: usize = 1 << 30;

/// Maximum time that a loader waits for another loader that uses the same name. It is longer than
/// [`CLAIM_PATIENCE`], so that the loader detects a process that died during its claim.
pub(crate) const LOADER_PATIENCE: Duration = Duration::from_millis(600);

/// Default time to wait for the end of an update when a model is opened or read. With a shorter
/// time, large updates make readers fail. With a longer time, a stopped writer blocks readers
/// longer.
pub(crate) const UPDATE_PATIENCE: Duration = Duration::from_secs(30);

/// Maximum age of a writer's claim without an announcement, after which the writer is treated as
/// dead. Normally, the announcement follows the claim within microseconds. With a shorter time, a
/// writer that the system does not schedule for that long must start again. With a longer time, the
/// next writer waits longer, and a reader that waits half a second at a time, as the Python module
/// does, never detects a dead writer.
pub(crate) const CLAIM_PATIENCE: Duration = Duration::from_millis(250);

/// Interval at which a process checks an update whose writer's signals it cannot wait for.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Interval at which a process checks for the next update when no writer exists that would signal
/// it.
pub(crate) const IDLE_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum time of one wait for a writer's event. After that, the writer's process is checked
/// again. This limits the delay that a wrong signal number can cause.
pub(crate) const WRITER_INTERVAL: Duration = Duration::from_millis(200);

/// Maximum number of times that a name is looked up again because its version ended between the
/// lookup and the open. With fewer, a name that is replaced all the time may not be opened.
pub(crate) const MAX_LOOKS: u32 = 8;
