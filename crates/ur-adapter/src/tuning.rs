//! Time intervals, sizes and limits that this adapter chooses.

use std::time::Duration;

/// Time for which a thread sleeps between two attempts to acquire a short lock. It is longer than a
/// system call, and shorter than a scheduler's time slice.
pub(crate) const SHORT_LOCK_SLEEP: Duration = Duration::from_micros(20);
/// Number of attempts to acquire a short lock before the first sleep. Together, these attempts take
/// about as long as a system call.
pub(crate) const SHORT_LOCK_LOOKS: u32 = 100;

/// Minimum interval between two checks whether commands still use memory that is to be freed. The
/// commands cannot wake the waiting thread, so it polls.
pub(crate) const IN_USE_POLL_SHORTEST: Duration = Duration::from_micros(20);
/// Maximum interval between two checks whether commands still use memory. After a long command,
/// memory may be freed late by this much.
pub(crate) const IN_USE_POLL_LONGEST: Duration = Duration::from_millis(1);
/// Divisor for the interval between two checks whether commands still use memory. The interval is
/// the elapsed waiting time divided by this value. Memory is therefore freed at most about 13 %
/// late, and the number of checks grows logarithmically.
pub(crate) const IN_USE_POLL_DIVISOR: u32 = 8;

/// Time for which releasing a buffer over the user's memory waits for the commands that use the
/// buffer.
///
/// Users free their memory after the release. Most submitted commands complete within this time. If
/// a command takes longer, the contents are written back after the release.
pub(crate) const BUFFER_RELEASE_GRACE: Duration = Duration::from_millis(200);

/// Alignment of buffers and of each part of a work-group's local memory, in bytes. It is the size
/// of the largest vector type in kernels.
pub(crate) const LARGEST_VECTOR_BYTES: usize = 128;

/// Alignment of rows in pitched allocations, in bytes. It is the size of a cache line, and is
/// larger than any element that devices access in one operation.
pub(crate) const ROW_ALIGN_BYTES: usize = 64;

/// Maximum number of arguments of a kernel. It bounds the memory that an invalid argument index can
/// make the adapter allocate. No kernel needs this many arguments.
pub(crate) const MAX_KERNEL_ARGUMENTS: usize = 4096;

/// Base-2 logarithm of the number of slots in the table of reusable events. The table occupies 32
/// KiB in every process. Looking up an event that has no slot requires a lock.
pub(crate) const REUSABLE_EVENT_PLACE_BITS: u32 = 12;
