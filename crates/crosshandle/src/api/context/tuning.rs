//! Constants of count of copies between files and memory, and why they have their values.

/// Threads that copy between a file and memory at a time, the caller among them. Reading a file from
/// memory takes a thread's whole time at a tenth of what a GPU's bus carries. Halved: such a copy does not fill
/// the bus. Doubled: more memory is registered with a driver, which costs more than is gained.
pub(super) const FILE_THREADS: usize = 16;

/// Bytes that a thread copies at a time between a file and memory. Halved: on a GPU, calls of the driver begin to
/// show. Doubled: twice as much memory is registered with the driver for the copy, which shows in short ones.
pub(super) const FILE_PART_BYTES: usize = 4 << 20;
