//! Times and counts of the Level Zero backend. The values for lists were measured with the
//! simulated driver, whose calls take about 200 ns, so only their orders of magnitude matter.

use std::time::Duration;

/// Time that a list's thread stays awake without a command before it sleeps. Waking the thread
/// costs the submitter 2 to 10 µs, and an awake thread uses a CPU.
pub(super) const AWAKE_TIME: Duration = Duration::from_micros(40);

/// Interval at which an awake thread checks for commands. Each check takes cache lines from the
/// submitter. A longer interval delays the end of the first command after a pause.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_micros(5);

/// Maximum delay with which the thread notices the end of commands that no thread is known to wait
/// for. The memory of such commands is kept that much longer.
pub(super) const UNAWAITED_DELAY: Duration = Duration::from_millis(5);

/// Number of commands that no thread is known to wait for, after which the thread is woken to drop
/// what they used. A wake costs the submitter about 10 µs.
pub(super) const MAX_UNAWAITED_COMMANDS: u64 = 1024;

/// Maximum number of short commands that share one fence. The memory of the first command is kept
/// until all of them have finished.
pub(super) const MAX_COMMANDS_PER_FENCE: u32 = 256;

/// Maximum number of bytes that a command may write if it shares its fence with later commands. At
/// a GPU's 100 GB/s, sharing delays a waiter for the previous command by about 0.6 µs.
pub(super) const MAX_SHORT_COMMAND_BYTES: usize = 64 << 10;

/// Number of events in one of the driver's pools.
pub(super) const EVENTS_PER_POOL: u32 = 64;

/// Number of free fences below which a submitter allocates another pool before it takes its list's
/// lock. A submission takes up to five fences. If other lists of the context take them first, the
/// pool is allocated under the lock.
pub(super) const MIN_FREE_FENCES: usize = 16;

/// Length of one wait for a fence, after which the thread checks whether the wait can still
/// succeed. The death of a process that a list waits for is noticed up to this much later.
pub(super) const FENCE_WAIT_SLICE: Duration = Duration::from_millis(40);

/// Number of wait slices for which a list may make no progress, although everything that it waits
/// for has completed or failed, before the list is abandoned. With one slice, a list that is about
/// to continue would be abandoned.
pub(super) const MAX_OVERDUE_SLICES: u32 = 2;

/// Maximum number of lists of an out-of-order queue while no command waits for the host. Intel's
/// GPUs have at most four compute engines.
pub(super) const MAX_UNBLOCKED_LISTS: usize = 4;

/// Maximum number of lists of an out-of-order queue. Once this many commands wait for the host,
/// later commands are held up.
pub(super) const MAX_LISTS: usize = 32;

/// Time that a list without commands may take to signal a fence before the queue is reported as
/// busy. A list takes microseconds if the program's own commands have finished. On a loaded
/// machine, a short timeout reports an idle queue as busy.
pub(super) const IDLE_CHECK_TIMEOUT: Duration = Duration::from_millis(100);

/// Time that the drop of a queue waits for commands that wait neither for the host nor for another
/// process. After this time, the drain waits for them.
pub(super) const QUEUE_DROP_TIMEOUT: Duration = Duration::from_millis(5);

/// Time that the drop of a context waits for commands that wait neither for the host nor for
/// another process, so that no thread is in the driver when the process ends.
pub(super) const CONTEXT_DROP_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes of a segment of device memory that small allocations share.
pub(super) const DEVICE_SEGMENT_BYTES: usize = 64 << 20;

/// Bytes of a segment of host memory that small allocations share. The whole segment is pinned when
/// it is allocated.
pub(super) const HOST_SEGMENT_BYTES: usize = 16 << 20;

/// Lowest number of a descriptor that is loaned to the driver. The system gives other descriptors
/// the lowest free number. No other descriptor therefore gets a loaned number that the driver has
/// closed before this library checks it, unless the process has this many descriptors. The usual
/// limit is 1024.
pub(super) const FIRST_LOANED_DESCRIPTOR: i32 = 512;
