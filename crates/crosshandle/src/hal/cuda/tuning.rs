//! Counts and times of the CUDA backend, each with its unit and its reason.
//!
//! "Measured" refers to the tables in `docs/cuda.md`.

use std::num::NonZeroU64;
use std::time::Duration;

// How a thread waits for a queue to finish.

/// How long a thread that finishes a queue spins before it sleeps: about what the shortest sleep
/// takes. Halved: short commands are noticed a sleep late. Doubled: more time of a CPU is lost.
pub(super) const FINISH_SPIN: Duration = Duration::from_micros(100);
/// How often that thread asks the driver, which alone knows of errors; an answer takes up to 1.3 µs.
/// Halved: the asking takes a tenth of the time. Doubled: an error is noticed later.
pub(super) const FINISH_QUERY_INTERVAL: Duration = Duration::from_micros(25);
/// Bounds of that thread's sleeps. Halved: more wake-ups. Doubled: the end is noticed later.
pub(super) const FINISH_SLEEP_SHORTEST: Duration = Duration::from_micros(20);
pub(super) const FINISH_SLEEP_LONGEST: Duration = Duration::from_millis(1);
/// How long the drop of a queue waits for a thread that has the queue locked. Halved: a stream of the
/// program is more often asked about after its queue went. Doubled: a drop may take longer.
pub(super) const QUEUE_LOCK_WAIT: Duration = Duration::from_millis(2);

// What a stream has in flight.

/// Weight of commands after which the device writes a fence; a plain signal weighs as many as the
/// calls that it takes. Halved: twice the fences, each as dear as a signal. Doubled: commands that are
/// done count as in flight until a stream seems to have no room.
pub(super) const FENCE_WEIGHT: u32 = 64;
/// Least weight of a command that keeps memory. Halved: memory is kept longer. Doubled: more fences.
pub(super) const MEMORY_WEIGHT: u32 = 16;
/// Calls of the driver that a stream takes while it waits. Measured: after 1,020 the next call
/// returns only when the stream goes on, and streams may share that number. Halved: commands are held
/// back that need not be. Doubled twice: submitting blocks.
pub(super) const STREAM_MAX_CALLS: u32 = 256;
/// The most calls that a launch of a graph counts as; it counts as many as it has nodes, since what it takes
/// of the stream's room is the driver's affair. Halved: more launches are queued behind a stream that waits,
/// and one may block its submitter. Doubled: fewer than two are.
pub(super) const GRAPH_MAX_CALLS: u32 = 100;
/// Calls that a host function counts as. Measured: a stream that waits takes 55 of them with
/// commands in between. Halved twice: submitting blocks. Doubled: functions are held back sooner.
pub(super) const HOST_FUNCTION_CALLS: u32 = 32;
/// Events whose latest signals a stream remembers as its own. Halved: a stream that signals several
/// events in turns waits for itself. Doubled: each signal looks through more of them.
pub(super) const OWN_SIGNAL_EVENTS: usize = 4;
/// Longest pattern, in bytes, that is written by fills of single words; a longer one is copied from
/// the host. Halved: more patterns take pinned memory. Doubled: a fill takes up to 128 calls.
pub(super) const INLINE_PATTERN_BYTES: usize = 64;

// Streams that wait.

/// Connections of a context to its device, unless `CUDA_DEVICE_MAX_CONNECTIONS` says otherwise: what
/// the driver makes. With a wrong number streams get behind others that wait, or too few are used.
pub(super) const DEFAULT_CONNECTIONS: usize = 8;
/// How often the scheduler looks after queues with commands in flight. Halved: twice the wake-ups of
/// a busy process. Doubled: what a dead process left undone is noticed later.
pub(super) const TEND_INTERVAL: Duration = Duration::from_millis(50);
/// The same while somebody has dropped memory that a command may have finished with, and for how long that
/// counts. Halved: a process that drops such memory all the time wakes up twice as often, and what a
/// slow command used is closed later. Doubled: memory of other processes stays open for up to 8 ms after a
/// command has finished with it, and such a process wakes up for longer.
pub(super) const TEND_SOON_INTERVAL: Duration = Duration::from_millis(4);
pub(super) const TEND_SOON_TIME: Duration = Duration::from_millis(20);
/// How long a scheduler's thread stays with nothing to do. Halved or doubled: programs that use a
/// queue now and then start a thread more or less often.
pub(super) const SCHEDULER_IDLE: Duration = Duration::from_secs(2);
/// Bounds of the scheduler's sleeps while commands are pending. Halved: more of a CPU. Doubled: such
/// commands begin later (40 µs with these).
pub(super) const PENDING_SLEEP_SHORTEST: Duration = Duration::from_micros(10);
pub(super) const PENDING_SLEEP_LONGEST: Duration = Duration::from_millis(1);
/// How late the system may wake the scheduler, in nanoseconds. Its default of 50 µs is more than the
/// shortest sleep. Doubled: commands that were pending begin a little later.
pub(super) const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::new(1_000).unwrap();

/// Bytes of a row of a copy in a graph: longer copies are of several rows. The driver takes rows that are up to
/// 2 GiB - 1 apart. Halved: nothing changes for copies that are as short. Doubled: such copies are refused.
pub(super) const GRAPH_COPY_ROW: usize = 1 << 30;

/// How long making a graph waits until the device has it; the first launch may be slower otherwise. Halved:
/// that happens on a busy device. Doubled: a busy device holds up the making longer.
pub(super) const GRAPH_UPLOAD_WAIT: Duration = Duration::from_millis(100);

// Deferred driver calls.

/// Memory, in bytes, that a node of a graph is taken to use on the device; the driver doesn't tell. It counts
/// as [`PROGRAM_BYTES`] does.
pub(super) const GRAPH_NODE_BYTES: usize = 1 << 10;

/// Memory, in bytes, that may wait to be unregistered before streams that would wait are held back
/// for that. Halved: streams are held back more often. Doubled: more pinned memory stays.
pub(super) const QUIET_MAX_BYTES: usize = 256 << 20;
/// Memory, in bytes, that a loaded program is taken to use; the driver doesn't tell. It only counts
/// towards [`QUIET_MAX_BYTES`]: halved or doubled, twice or half as many programs may wait to be
/// unloaded before streams are held back for that.
pub(super) const PROGRAM_BYTES: usize = 1 << 20;
/// How long an allocation that failed waits for what can be released, and how long host functions
/// are held back for it. Halved: it fails more often. Doubled: the caller waits longer in vain.
pub(super) const MAKE_ROOM_WAIT: Duration = Duration::from_secs(1);
/// How long a thread waits for a deferred driver call that it requested, and how long streams are
/// held back for one call after another. Halved: pinned memory is more often there still when its
/// owner goes on. Doubled: streams that would wait begin later.
pub(super) const DEFERRED_CALL_WAIT: Duration = Duration::from_millis(10);
/// Bounds of the sleeps between looks whether streams still wait, while calls are deferred.
/// Halved: more wake-ups. Doubled: memory is released later.
pub(super) const DEFERRED_SLEEP_SHORTEST: Duration = Duration::from_millis(1);
pub(super) const DEFERRED_SLEEP_LONGEST: Duration = Duration::from_millis(50);
/// A deferred call that takes longer than this, and than its bytes explain, is taken to wait for a
/// stream that is not known here. Measured: 29 ms beside processes that begin. Halved: a slow call is
/// more often taken for stuck, and the driver may then hold up copies. Doubled: streams that such a
/// call waits for are held back longer.
pub(super) const CALL_STUCK_AFTER: Duration = Duration::from_secs(1);
/// Memory, in bytes, that may take a call a millisecond more: pages are released one by one
/// (measured: 0.2 to 13 ms for 2 MiB).
pub(super) const RELEASED_BYTES_PER_MS: usize = 2 << 20;
/// How long the end of a context, or of a queue in it, waits for threads of this library there.
/// Halved: a slow call is more often still under way when the program ends its context. Doubled:
/// that takes longer where a stream of the program holds such a call up.
pub(super) const CONTEXT_END_WAIT: Duration = Duration::from_secs(1);

// Streams made ahead.

/// Streams in the pool below which more are made. Halved: a burst of queues finds none. Doubled:
/// more are made than most programs use.
pub(super) const POOL_LOW: usize = 16;
/// Streams in the pool when it is full; one takes 20 µs. Measured: the driver makes some 43 at a
/// time, and the next ones only when no stream waits. Halved: queues made while streams wait have to
/// wait. Doubled: the first queue takes longer.
pub(super) const POOL_FULL: usize = 64;
/// Streams that one deferred call makes. Halved: more calls. Doubled: streams that would wait are
/// held back longer meanwhile.
pub(super) const POOL_BATCH: usize = 8;

// Memory between a process and its devices.

/// Bytes of a piece of pinned memory that is kept for long patterns, and how many are kept: pinning
/// takes a multiple of what a command takes. Halved: more commands pin memory. Doubled: up to 2 MiB
/// stay pinned.
pub(super) const STAGING_BYTES: usize = 64 << 10;
pub(super) const STAGING_KEPT: usize = 16;
/// Bytes of a page of words of this process, and words that are there before a queue is locked.
/// Halved or doubled: pages are registered more or less often.
pub(super) const WORD_PAGE_BYTES: usize = 64 << 10;
pub(super) const WORDS_RESERVED: usize = 16;

// The clocks of host and device.

/// How long a moment that both clocks know serves, in nanoseconds: the driver tells times since then
/// as 32-bit floats, after 4 s to a quarter of a microsecond. Halved: a moment is looked for more
/// often. Doubled: half as exact.
pub(super) const CLOCK_LIFETIME_NS: u64 = 4_000_000_000;
/// Tries to find such a moment; the fastest is the most exact. Halved: less exact. Doubled: slower.
pub(super) const CLOCK_TRIES: usize = 3;
/// How long a try may take, in nanoseconds, before a command is submitted and while its times are
/// read. A slower one is behind other streams, which may wait for anything. Halved: more commands get
/// their times late. Doubled: submitting, or reading, takes longer in vain.
pub(super) const CLOCK_TRY_SUBMIT_NS: u64 = 5_000_000;
pub(super) const CLOCK_TRY_READ_NS: u64 = 100_000_000;
/// How long no command tries again after that, in nanoseconds. Halved: submitting is slow more often.
/// Doubled: more commands get their times late.
pub(super) const CLOCK_PAUSE_NS: u64 = 100_000_000;

// The driver's own calls.

/// The part of the process's descriptors that are kept ahead for importers of memory of many pieces: one in
/// this many. Halved: programs with a low limit have fewer for themselves. Doubled: importers of more
/// pieces wait for the exporter's driver, some 25 µs a piece, as far as their own driver is not
/// slower.
pub(super) const KEPT_PART: u64 = 4;

/// Operations on words that one call takes. Measured: two take little longer than one. Halved: more
/// calls for commands with many waits. Doubled: each call copies more.
pub(super) const WORD_OPS_PER_CALL: usize = 8;
/// Bytes that are kept of what the compiler says. Halved: long messages are cut off. Doubled: loading
/// a program takes more memory for a moment.
pub(super) const COMPILER_LOG_BYTES: usize = 16 << 10;

/// Resolution of the driver's event times, as `cuEventElapsedTime` documents it. Not for tuning: halved or
/// doubled, it would be wrong.
pub(super) const TIMER_RESOLUTION: Duration = Duration::from_nanos(500);
