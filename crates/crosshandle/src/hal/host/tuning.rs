//! Constants of the host backend.

/// Commands of up to this many bytes may run on the thread that submits them, whose call then takes up
/// to 2 µs longer. At half of it, more short copies pay for waking the queue's thread, which takes
/// longer than the copy; at twice, submitting blocks for longer than that takes.
pub(super) const INLINE_COMMAND_BYTES: usize = 64 << 10;

/// From this size on, memory is compared with what its control group has left before huge pages are asked
/// for, which takes the memory. The look takes some 50 µs. Halved: smaller allocations take that much longer
/// when they are made. Doubled: in groups with little memory, larger allocations take it before they are
/// touched.
pub(super) const CHECKED_POPULATE_BYTES: usize = 32 << 20;

/// How many of a queue's latest launches are searched for the signal that another one waits for. Half as
/// many: launches that wait for one of those before wake the queue's thread. Twice as many: launches that
/// wait for something else take that much longer to submit.
pub(super) const SEARCHED_LAUNCHES: usize = 16;
