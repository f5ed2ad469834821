//! Time intervals, sizes and limits that this adapter chooses.

/// Alignment of buffers and of each part of a work-group's local memory, in bytes. It is the size
/// of the largest vector type in kernels.
pub(crate) const LARGEST_VECTOR_BYTES: usize = 128;

/// Maximum number of arguments of a kernel. It bounds the memory that an invalid argument index can
/// make the adapter allocate. No kernel needs this many arguments.
pub(crate) const MAX_KERNEL_ARGUMENTS: usize = 4096;
