//! Times and counts of the Level Zero backend. Those of lists were found on the simulated driver,
//! whose calls take some 200 ns, so only their orders of magnitude matter.

use std::time::Duration;

/// Time that a list's thread stays awake without a command before it sleeps, since waking it costs
/// the submitter 2 to 10 µs. Halved: programs that submit every 20 to 40 µs pay for a wake each
/// time. Doubled: the thread takes a CPU for longer after the last command.
pub(super) const AWAKE_TIME: Duration = Duration::from_micros(40);

/// Time between two looks of a thread that stays awake. Halved: twice the looks, each of which takes
/// cache lines from the submitter. Doubled: the first command after a pause ends later by as much.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_micros(5);

/// Lateness of the end of commands that no thread is known to wait for. Halved: twice as many timed
/// wakes of lists that stay busy. Doubled: memory of such commands is kept for longer.
pub(super) const UNAWAITED_DELAY: Duration = Duration::from_millis(5);

/// Commands that no thread is known to wait for, after which the thread is woken to drop what they
/// used. Halved: submitters pay for a wake (10 µs) twice as often. Doubled: twice the memory is
/// kept.
pub(super) const MAX_UNAWAITED_COMMANDS: u64 = 1024;

/// Short commands that share one fence at most. Halved: twice the fences. Doubled: the memory of
/// the first ones is kept until twice as many are done.
pub(super) const MAX_COMMANDS_PER_FENCE: u32 = 256;

/// Bytes that a command writes, up to which it may share its fence with later ones. Halved or
/// doubled: a waiter for the command before waits, at a GPU's 100 GB/s, for 0.3 µs less or 0.6 µs
/// more.
pub(super) const MAX_SHORT_COMMAND_BYTES: usize = 64 << 10;

/// Events in one of the driver's pools. Halved: twice the allocations of the driver while a list
/// gets its first fences. Doubled: a process with one queue holds 64 events more.
pub(super) const EVENTS_PER_POOL: u32 = 64;

/// Free fences below which a submitter allocates another pool before it takes its list's lock. A
/// submission takes up to five. Halved: other lists of the context may take them first, and the pool
/// is allocated under the lock. Doubled: pools are allocated a little earlier.
pub(super) const MIN_FREE_FENCES: usize = 16;

/// Length of one wait for a fence, after which the thread looks whether the wait is in vain. Halved:
/// twice the looks at events of other processes. Doubled: the death of a process that a list waits
/// for is noticed later by as much.
pub(super) const FENCE_WAIT_SLICE: Duration = Duration::from_millis(40);

/// Slices for which a list may stand still although everything that it waits for has happened, in
/// part by failing, before it is given up. With one, a list is given up that is about to go on;
/// doubled: the commands behind a dead process's signal run 80 ms later.
pub(super) const MAX_OVERDUE_SLICES: u32 = 2;

/// Lists of an unordered queue while no command waits for the host. Halved: fewer commands run at a
/// time. Doubled: more threads, though Intel's GPUs have at most four compute engines.
pub(super) const MAX_UNBLOCKED_LISTS: usize = 4;

/// Lists of an unordered queue in all. Halved: commands are held up by earlier ones that wait for
/// the host once 16 do. Doubled: twice the threads in that case.
pub(super) const MAX_LISTS: usize = 32;

/// Time that a list without commands may take to signal a fence before the queue counts as busy. It
/// takes microseconds where the program's own commands are done. Halved: a loaded machine may call
/// an idle queue busy. Doubled: asking a queue that is busy takes twice as long.
pub(super) const IDLE_CHECK_TIMEOUT: Duration = Duration::from_millis(100);

/// Time that dropping a queue waits for commands that wait neither for the host nor for another
/// process. Halved: more queues leave their thread to the drain. Doubled: dropping a queue whose
/// commands take long blocks for longer.
pub(super) const QUEUE_DROP_TIMEOUT: Duration = Duration::from_millis(5);

/// Time that dropping a context waits for commands that wait neither for the host nor for another
/// process, so that no thread is in the driver when the process ends. Halved: on a loaded machine
/// some may be. Doubled: dropping a context with work that takes seconds blocks for longer.
pub(super) const CONTEXT_DROP_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes of a segment of device memory that small allocations share. Halved: twice the segments and
/// descriptors. Doubled: a program that allocates little takes 128 MiB of the GPU.
pub(super) const DEVICE_SEGMENT_BYTES: usize = 64 << 20;

/// Bytes of a segment of host memory that small allocations share; all of it is pinned at once.
/// Halved: twice the segments. Doubled: the first allocation takes twice as long.
pub(super) const HOST_SEGMENT_BYTES: usize = 16 << 20;

/// Lowest number of a descriptor that is loaned to the driver. The system gives others the lowest
/// free number, so that none gets one that the driver has closed before this library looks. Halved:
/// a process with over 256 descriptors may. Doubled: beyond the usual limit of 1024 numbers.
pub(super) const FIRST_LOANED_DESCRIPTOR: i32 = 512;
