//! Every time and limit that was chosen, not given. Each says its unit, its reason, and what goes
//! wrong if it is halved or doubled.

use std::time::Duration;

/// Microseconds that a thread sleeps between looks at a short lock that another thread holds.
/// Reason: more than a system call, less than a scheduler's time slice. Halved: waiting costs more
/// of the processor. Doubled: a thread that meets a preempted holder is later.
pub(crate) const SHORT_LOCK_SLEEP: Duration = Duration::from_micros(20);
/// Looks at a short lock before the first sleep. Reason: together about as long as a system call.
/// Halved: more threads sleep for a lock that is free at once. Doubled: waiting costs more of the
/// processor where the holder was preempted.
pub(crate) const SHORT_LOCK_LOOKS: u32 = 100;

/// Bounds of the time between two looks whether commands still use memory that is freed. Reason:
/// there is nothing to sleep on. Shortest halved: more wake-ups for a command that is done soon;
/// doubled: freeing after a short command is later. Longest halved: more wake-ups while a long
/// command runs; doubled: freeing is up to 2 ms late after one.
pub(crate) const IN_USE_POLL_SHORTEST: Duration = Duration::from_micros(20);
/// See [`IN_USE_POLL_SHORTEST`].
pub(crate) const IN_USE_POLL_LONGEST: Duration = Duration::from_millis(1);
/// The time between two such looks, as a part of the time waited so far: an eighth. Reason: late by
/// 13 % at most, for a logarithmic number of looks. Halved: late by a quarter. Doubled: twice the
/// looks.
pub(crate) const IN_USE_POLL_DIVISOR: u32 = 8;

/// Time that the release of a buffer of the user's memory waits for commands that use it. Reason: users
/// free the memory then, and a command that was submitted is usually done by that time. Halved: more
/// contents go back after the release. Doubled: a release that meets a long command holds the
/// caller up longer.
pub(crate) const BUFFER_RELEASE_GRACE: Duration = Duration::from_millis(200);

/// Bytes at a multiple of which buffers, and parts of a work-group's local memory, start. Reason:
/// the size of the largest vector of a kernel. Halved: kernels may access such a vector misaligned.
/// Doubled: small parts waste local memory.
pub(crate) const LARGEST_VECTOR_BYTES: usize = 128;

/// Bytes at a multiple of which rows of pitched allocations start. Reason: a line of a cache, and
/// more than any element that devices access at once. Halved: rows share lines. Doubled: narrow rows
/// waste memory.
pub(crate) const ROW_ALIGN_BYTES: usize = 64;

/// Arguments of a kernel, at most: a bound on what a wrong index may allocate. Reason: more than any
/// kernel has. Halved: still more. Doubled: a wrong index costs more memory before it is refused.
pub(crate) const MAX_KERNEL_ARGUMENTS: usize = 4096;

/// Bits of the number of places in the table of reusable events. Reason: 4096 places take 32 KiB and
/// hold what programs have. One less: more events are looked up behind a lock. One more: twice the
/// memory of every process.
pub(crate) const REUSABLE_EVENT_PLACE_BITS: u32 = 12;
