//! Time limits, sizes and counts that several files use.

// ---- Messages between the two processes ----

// ---- Deadlines ----

// ---- The demo's measurements ----

/// Number of the round trip that is treated as the middle of a ping-pong. A test may stop a process
/// there, so no ping-pong ends before it.
pub(crate) const DEMO_PINGS_BEFORE_MIDDLE: u64 = 100;

// ---- Copies ----

/// Number of bytes that are copied to or from device memory at a time.
///
/// This is large enough for the full speed of a copy, and fits into a core's cache on small
/// machines.
pub(crate) const COPY_CHUNK_BYTES: usize = 256 << 10;

/// Number of bytes that are read from or written to a file at a time.
///
/// At this size, the cost of system calls is negligible. Progress is shown after each part, so
/// larger parts would make the progress bar jump.
pub(crate) const FILE_CHUNK_BYTES: usize = 1 << 20;

// ---- Progress ----

// ---- Watching other processes ----
