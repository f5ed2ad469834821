//! Constants of the host backend.

use std::time::Duration;

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

/// How long a queue's thread leaves launches uncollected for which no event waits, while more may follow:
/// waking it for each takes longer than a small kernel. Twice as long: what their kernels used stays that
/// much longer. Half: the thread wakes twice as often while kernels are launched.
pub(super) const COLLECT_INTERVAL: Duration = Duration::from_millis(1);
