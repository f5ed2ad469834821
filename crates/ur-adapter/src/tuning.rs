//! Time limits and sizes that are a choice of this adapter.

/// Alignment of buffers, and of the parts of a work-group's local memory, in bytes. It is the size
/// of the largest vector type of kernels.
pub(crate) const LARGEST_VECTOR_BYTES: usize = 128;

/// Maximum number of arguments of a kernel. It limits the memory that a wrong index may allocate,
/// and is larger than any kernel needs.
pub(crate) const MAX_KERNEL_ARGUMENTS: usize = 4096;
