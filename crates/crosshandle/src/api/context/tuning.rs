//! Limits for copies between files and memory.

/// Maximum number of threads that copy between a file and memory, including the caller. One thread
/// reads a cached file at a tenth of the bandwidth of a GPU's bus, so many threads are needed to
/// fill it. Each one registers more memory with the driver.
pub(super) const FILE_THREADS: usize = 16;

/// Size of the parts in which a thread copies between a file and memory, in bytes. Smaller parts
/// make more driver calls on a GPU. Larger parts register more memory with the driver, which slows
/// down short copies.
pub(super) const FILE_PART_BYTES: usize = 4 << 20;
