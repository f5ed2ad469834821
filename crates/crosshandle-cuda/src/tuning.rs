//! Counts and times of the CUDA backend.
//!
//! "Measured" refers to the tables in `docs/cuda.md`.

use std::num::NonZeroU64;
use std::time::Duration;

// How a thread waits for a queue to finish.

/// Time that a thread in `finish` spins before it sleeps, which is about the length of the shortest
/// sleep. A shorter spin notices the end of short commands one sleep late.
pub(super) const FINISH_SPIN: Duration = Duration::from_micros(100);
/// Interval at which a thread in `finish` queries the driver, because only the driver reports
/// errors. A query takes up to 1.3 µs.
pub(super) const FINISH_QUERY_INTERVAL: Duration = Duration::from_micros(25);
/// Shortest and longest sleep of a thread in `finish`.
pub(super) const FINISH_SLEEP_SHORTEST: Duration = Duration::from_micros(20);
pub(super) const FINISH_SLEEP_LONGEST: Duration = Duration::from_millis(1);
/// Maximum time that the drop of a queue waits for a thread that has locked the queue. If the lock
/// is not free by then, this library may still query a stream of the program after the drop.
pub(super) const QUEUE_LOCK_WAIT: Duration = Duration::from_millis(2);

// What a stream has in flight.

/// Weight of commands after which the device writes a fence. A plain signal weighs as much as the
/// calls that it takes. Each fence costs as much as a signal. With fewer fences, finished commands
/// are treated as in flight for longer.
pub(super) const FENCE_WEIGHT: u32 = 64;
/// Minimum weight of a command that keeps memory alive. A smaller weight keeps memory for longer,
/// and a larger one needs more fences.
pub(super) const MEMORY_WEIGHT: u32 = 16;
/// Number of driver calls that a stream may hold while it waits. Measured: after 1,020 calls, the
/// next call returns only when the stream continues, and several streams may share that limit.
pub(super) const STREAM_MAX_CALLS: u32 = 256;
/// Maximum number of calls that a launch of a graph is counted as. A launch is counted as one call
/// per node, because the driver does not report how much of a stream's room it takes.
pub(super) const GRAPH_MAX_CALLS: u32 = 100;
/// Number of calls that a host function is counted as. Measured: a waiting stream accepts 55 host
/// functions with commands in between.
pub(super) const HOST_FUNCTION_CALLS: u32 = 32;
/// Number of events whose latest signals a stream remembers as its own. With a smaller number, a
/// stream that signals several events alternately waits for itself. With a larger one, each signal
/// searches more entries.
pub(super) const OWN_SIGNAL_EVENTS: usize = 4;
/// Longest pattern, in bytes, that fills of single words write. A longer pattern is copied from
/// pinned host memory. A fill with a pattern of this length takes up to 64 calls.
pub(super) const INLINE_PATTERN_BYTES: usize = 64;

// Streams that wait.

/// Number of connections of a context to its device, unless `CUDA_DEVICE_MAX_CONNECTIONS` is set.
/// It is the driver's default. With a wrong number, streams queue behind other streams that wait,
/// or too few streams are used.
pub(super) const DEFAULT_CONNECTIONS: usize = 8;
/// Interval at which the scheduler tends queues with commands in flight. A longer interval notices
/// the unfinished signals of a dead process later.
pub(super) const TEND_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which the scheduler tends queues after the program has dropped memory that a command
/// may have used, and the time for which it keeps to this interval. Memory of other processes stays
/// open for up to this interval after its last command. A process that drops such memory all the
/// time wakes up this often.
pub(super) const TEND_SOON_INTERVAL: Duration = Duration::from_millis(4);
pub(super) const TEND_SOON_TIME: Duration = Duration::from_millis(20);
/// Time that an idle scheduler thread waits for work before it ends.
pub(super) const SCHEDULER_IDLE: Duration = Duration::from_secs(2);
/// Shortest and longest sleep of the scheduler while commands are pending. With these bounds, a
/// pending command begins about 40 µs late.
pub(super) const PENDING_SLEEP_SHORTEST: Duration = Duration::from_micros(10);
pub(super) const PENDING_SLEEP_LONGEST: Duration = Duration::from_millis(1);
/// Timer slack of the scheduler thread, in nanoseconds. The system's default of 50 µs is longer
/// than the shortest sleep.
pub(super) const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::new(1_000).unwrap();

/// Bytes of a row of a copy in a graph. Longer copies consist of several rows. The driver accepts a
/// row pitch of up to 2 GiB - 1.
pub(super) const GRAPH_COPY_ROW: usize = 1 << 30;

/// Maximum time that the creation of a graph waits until the graph is on the device. If the device
/// does not have it by then, the first launch may be slower.
pub(super) const GRAPH_UPLOAD_WAIT: Duration = Duration::from_millis(100);

// Deferred driver calls.

/// Estimate of the device memory that a node of a graph uses, in bytes, because the driver does not
/// report it. It only counts towards [`QUIET_MAX_BYTES`].
pub(super) const GRAPH_NODE_BYTES: usize = 1 << 10;

/// Memory, in bytes, that may wait to be unregistered before streams that would wait are held back
/// for that. A smaller limit holds streams back more often, and a larger one leaves more memory
/// pinned.
pub(super) const QUIET_MAX_BYTES: usize = 256 << 20;
/// Estimate of the memory that a loaded program uses, in bytes, because the driver does not report
/// it. It only counts towards [`QUIET_MAX_BYTES`].
pub(super) const PROGRAM_BYTES: usize = 1 << 20;
/// Time that a failed allocation waits for memory to be released, and time that host functions are
/// held back for it.
pub(super) const MAKE_ROOM_WAIT: Duration = Duration::from_secs(1);
/// Time that a thread waits for a deferred driver call that it requested, and time that streams are
/// held back for successive calls. If the thread waits too briefly, pinned memory may still exist
/// when its owner continues.
pub(super) const DEFERRED_CALL_WAIT: Duration = Duration::from_millis(10);
/// Shortest and longest interval between checks whether streams still wait, while calls are
/// deferred.
pub(super) const DEFERRED_SLEEP_SHORTEST: Duration = Duration::from_millis(1);
pub(super) const DEFERRED_SLEEP_LONGEST: Duration = Duration::from_millis(50);
/// Time after which a deferred call is assumed to wait for a stream that this library does not
/// know, unless the call's bytes explain more. Measured: 29 ms while other processes start. A
/// shorter time treats more slow calls as stuck, and then the driver may delay copies. A longer
/// time holds streams back longer if such a call waits for them.
pub(super) const CALL_STUCK_AFTER: Duration = Duration::from_secs(1);
/// Bytes for each additional millisecond that a call may take, because pages are released one by
/// one. Measured: 0.2 to 13 ms for 2 MiB.
pub(super) const RELEASED_BYTES_PER_MS: usize = 2 << 20;
/// Maximum time that the end of a context, or of a queue in it, waits for this library's threads
/// inside it. After this time, a slow call may still be running when the program ends its context.
pub(super) const CONTEXT_END_WAIT: Duration = Duration::from_secs(1);

// Streams made ahead.

/// Number of streams in the pool below which more are created.
pub(super) const POOL_LOW: usize = 16;
/// Number of streams in a full pool. Creating one takes 20 µs. Measured: the driver creates about
/// 43 streams at a time, and the next ones only when no stream waits. Once the pool is empty, a
/// queue that is created while streams wait has to wait too.
pub(super) const POOL_FULL: usize = 64;
/// Number of streams that one deferred call creates. Streams that would wait are held back during
/// the call.
pub(super) const POOL_BATCH: usize = 8;

// Memory between a process and its devices.

/// Bytes of a piece of pinned memory that is kept for long patterns, and maximum number of such
/// pieces. They are kept because pinning takes several times as long as a command.
pub(super) const STAGING_BYTES: usize = 64 << 10;
pub(super) const STAGING_KEPT: usize = 16;
/// Bytes of a page of process words, and number of words that are reserved before a queue is
/// locked.
pub(super) const WORD_PAGE_BYTES: usize = 64 << 10;
pub(super) const WORDS_RESERVED: usize = 16;

// The clocks of host and device.

/// Time, in nanoseconds, for which a base is used. A base is a moment whose time is known on both
/// clocks. The driver reports times since the base as 32-bit floats, which after 4 s are accurate
/// to a quarter of a microsecond.
pub(super) const CLOCK_LIFETIME_NS: u64 = 4_000_000_000;
/// Number of attempts to find a new base. The fastest attempt is the most accurate.
pub(super) const CLOCK_TRIES: usize = 3;
/// Maximum time of an attempt to find a base, in nanoseconds, before a command is submitted and
/// while its times are read. A slower attempt is queued behind other streams, which may wait
/// indefinitely.
pub(super) const CLOCK_TRY_SUBMIT_NS: u64 = 5_000_000;
pub(super) const CLOCK_TRY_READ_NS: u64 = 100_000_000;
/// Time after a failed attempt to find a base, in nanoseconds, in which no command makes another
/// attempt. Commands submitted in this time get their times late.
pub(super) const CLOCK_PAUSE_NS: u64 = 100_000_000;

// The driver's own calls.

/// The fraction (one in `KEPT_PART`) of the process's descriptors that are kept ready for importers
/// of memory of many pieces. If more pieces are imported, the exporter's driver creates each
/// descriptor on request, which takes about 25 µs.
pub(super) const KEPT_PART: u64 = 4;

/// Maximum number of word operations in one driver call. Measured: a call with two takes little
/// longer than a call with one.
pub(super) const WORD_OPS_PER_CALL: usize = 8;
/// Maximum number of bytes that are kept of the compiler's output. Longer output is cut off.
pub(super) const COMPILER_LOG_BYTES: usize = 16 << 10;

/// Resolution of the driver's event times, as documented for `cuEventElapsedTime`. It is a property
/// of the driver, not a tuning value.
pub(super) const TIMER_RESOLUTION: Duration = Duration::from_nanos(500);
