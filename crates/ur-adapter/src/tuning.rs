//! Time limits and sizes that are a choice of this adapter.

use std::time::Duration;

/// Time that a thread sleeps between two attempts to take a short lock. It is longer than a system
/// call, and shorter than a scheduler's time slice.
pub(crate) const SHORT_LOCK_SLEEP: Duration = Duration::from_micros(20);
/// Number of attempts to take a short lock before the first sleep. All the attempts together take
/// about as long as a system call.
pub(crate) const SHORT_LOCK_LOOKS: u32 = 100;

/// Shortest time between two checks whether commands still use memory that is freed. The commands
/// cannot wake the waiting thread, so it polls.
pub(crate) const IN_USE_POLL_SHORTEST: Duration = Duration::from_micros(20);
/// Longest time between two such checks. After a long command, memory may be freed late by this
/// time.
pub(crate) const IN_USE_POLL_LONGEST: Duration = Duration::from_millis(1);
/// Divisor that gives the time between two such checks from the time waited so far. So memory is
/// freed at most about 13 % late, and the number of checks grows logarithmically.
pub(crate) const IN_USE_POLL_DIVISOR: u32 = 8;

/// Time that the release of a buffer over the user's memory waits for commands that use it.
///
/// Users free the memory after the release, and most submitted commands are done by then. If a
/// command takes longer, the contents are written back after the release.
pub(crate) const BUFFER_RELEASE_GRACE: Duration = Duration::from_millis(200);

/// Alignment of buffers, and of the parts of a work-group's local memory, in bytes. It is the size
/// of the largest vector type of kernels.
pub(crate) const LARGEST_VECTOR_BYTES: usize = 128;

/// Alignment of rows in pitched allocations, in bytes. It is the size of a cache line, and larger
/// than any element that devices access at once.
pub(crate) const ROW_ALIGN_BYTES: usize = 64;

/// Maximum number of arguments of a kernel. It limits the memory that a wrong index may allocate,
/// and is larger than any kernel needs.
pub(crate) const MAX_KERNEL_ARGUMENTS: usize = 4096;

/// Number of slots in the table of reusable events, as an exponent of two. The table takes 32 KiB
/// in every process. Events that do not fit are looked up behind a lock.
pub(crate) const REUSABLE_EVENT_PLACE_BITS: u32 = 12;
