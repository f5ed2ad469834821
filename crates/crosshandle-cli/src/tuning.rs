//! Time limits, sizes and counts that several files use.

use std::ops::RangeInclusive;
use std::time::Duration;

// ---- Messages between the two processes ----

/// Maximum size of a message that a process accepts from another process, in bytes.
///
/// A message contains two handles and a few numbers. Without a limit, another program could fill
/// the memory with a long line.
pub(crate) const MESSAGE_MAX_BYTES: usize = 1 << 20;

/// Maximum number of bytes that are read from standard input for a handle. It is several times the
/// length of a handle.
pub(crate) const HANDLE_LINE_MAX_BYTES: u64 = 4096;

// ---- Deadlines ----

/// Maximum time that a child process may take to end after its pipes have closed.
///
/// The kernel closes a dying process's pipes shortly before the process can be waited for. If the
/// time is too short on a busy machine, the exit status is lost, which best explains why the
/// process has failed.
pub(crate) const CHILD_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum duration of each step of `doctor`'s exchange with its child process.
///
/// All steps together normally take milliseconds. With much less, a busy machine could be reported
/// as a problem.
pub(crate) const DOCTOR_STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that `doctor` waits for events that are not signalled.
///
/// The wait must reach the kernel, which takes microseconds. A longer wait would delay the report.
pub(crate) const DOCTOR_UNSIGNALLED_WAIT: Duration = Duration::from_millis(2);

/// Maximum time that `doctor` waits for an event that is already signalled.
///
/// The wait returns at once unless the system call does not work.
pub(crate) const DOCTOR_SIGNALLED_WAIT: Duration = Duration::from_secs(2);

/// Maximum time for the demo's first process to create the shared objects.
///
/// Initialising a GPU's driver and allocating most of its memory takes seconds. With much less, a
/// demo could fail on a machine with many GPUs.
pub(crate) const DEMO_OFFER_TIMEOUT: Duration = Duration::from_secs(60);

/// Minimum timeout of each step of the demo, for any size of memory.
///
/// The steps of the default size take less than a second. With less, a demo could fail on a busy
/// machine. With more, a process that is stuck is reported later.
pub(crate) const DEMO_STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// Minimum speed, in bytes per second, of a process that fills or verifies memory. A slower process
/// is treated as stuck.
///
/// Memory and buses are many times faster, so only an emulator comes near this speed.
pub(crate) const DEMO_MIN_BYTES_PER_SECOND: u64 = 32 << 20;

// ---- The demo's measurements ----

/// Minimum size in bytes of the memory that the demo shares. Each half has room for a few words.
pub(crate) const DEMO_MIN_BYTES: u64 = 4096;

/// Maximum number of round trips of one ping-pong.
///
/// This number gives a stable 99th percentile. On slow machines, `DEMO_PING_TIME` ends the
/// ping-pong earlier.
pub(crate) const DEMO_PINGS_MAX: u64 = 20_000;

/// Number of the round trip that is treated as the middle of a ping-pong. A test may stop a process
/// there, so no ping-pong ends before it.
pub(crate) const DEMO_PINGS_BEFORE_MIDDLE: u64 = 100;

/// Time after which a ping-pong ends even if it has made fewer round trips.
///
/// The user waits for two ping-pongs. With less time, slow machines give fewer samples.
pub(crate) const DEMO_PING_TIME: Duration = Duration::from_millis(500);

/// Number of repetitions of an operation whose mean time is measured.
///
/// With this number, the cost of reading the clock is negligible.
pub(crate) const DEMO_MEAN_REPEATS: u32 = 10_000;

/// Time after which the demo stops repeating its reads of the memory.
///
/// In this time, memory of the default size is read dozens of times.
pub(crate) const DEMO_READ_TIME: Duration = Duration::from_millis(300);

/// Minimum and maximum number of passes of reading the memory.
///
/// A median needs at least three passes. Beyond a thousand passes, the median no longer changes.
pub(crate) const DEMO_READ_PASSES: RangeInclusive<u32> = 3..=1000;

// ---- Copies ----

/// Number of bytes that are copied to or from device memory at a time.
///
/// This is large enough for the full speed of a copy, and fits into a core's cache on small
/// machines.
pub(crate) const COPY_CHUNK_BYTES: usize = 256 << 10;

/// Number of bytes that are read from or written to a file at a time.
///
/// At this size, the cost of system calls is negligible. Progress is shown after each part, so
/// larger parts would make the progress bar jump.
pub(crate) const FILE_CHUNK_BYTES: usize = 1 << 20;

/// Size in bytes of the memory that `doctor` shares with its child process.
pub(crate) const DOCTOR_SHARED_BYTES: usize = 64 << 10;

/// Size in bytes of the memory in which `doctor` looks for huge pages: two pages of the usual size.
pub(crate) const DOCTOR_HUGE_PAGES_BYTES: usize = 4 << 20;

// ---- Progress ----

/// Time during which progress stays hidden, so that quick commands show none.
pub(crate) const PROGRESS_DELAY: Duration = Duration::from_millis(400);

/// Interval at which progress is redrawn, so that it moves during a long step.
pub(crate) const PROGRESS_REDRAW_INTERVAL: Duration = Duration::from_millis(100);

// ---- Watching other processes ----

/// Maximum time that `top` waits for all processes to reply. A stopped process delays each update
/// by this time.
///
/// A reply takes a millisecond. With much less, a busy process could be reported as not replying.
pub(crate) const TOP_ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// Minimum interval between two updates of `top`, and the interval between the first two.
///
/// Rates over a shorter time fluctuate too much.
pub(crate) const TOP_MIN_INTERVAL: Duration = Duration::from_millis(200);

/// Interval at which `top` checks for new replies and signals while no key is pressed.
pub(crate) const TOP_KEY_INTERVAL: Duration = Duration::from_millis(50);

/// Interval at which `link share` checks whether its link has ended. Until then, it refuses
/// processes that connect.
pub(crate) const LINK_LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Stack size in bytes of the thread that runs a command. Unoptimized builds need much of it, and
/// unused pages take no memory.
pub(crate) const COMMAND_STACK_BYTES: usize = 8 << 20;

/// Maximum time for a successor to bind the metrics port of its holder. A busy machine may not have
/// closed the port yet.
pub(crate) const METRICS_BIND_TIME: Duration = Duration::from_secs(10);

/// Interval between two attempts to bind the metrics port.
pub(crate) const METRICS_BIND_INTERVAL: Duration = Duration::from_millis(10);

/// Stack size in bytes of a thread that serves the metrics port. Unoptimized builds need much of
/// it, and unused pages take no memory.
pub(crate) const METRICS_STACK_BYTES: usize = 1 << 20;

/// Maximum number of connections to the metrics port that have sent no request yet, and maximum
/// number of requests that are answered at a time. A further connection closes the oldest one
/// without a request. The limit bounds the threads and descriptors that a flood of connections can
/// use.
pub(crate) const METRICS_CONNECTIONS: usize = 16;

/// Timeout of a client of the metrics port, for sending its request and for reading the reply. A
/// silent client occupies a connection for this time.
pub(crate) const METRICS_REQUEST_TIME: Duration = Duration::from_secs(2);

/// Maximum size of the head of a request, in bytes. Browsers may send long cookies of other
/// programs on the same host.
pub(crate) const METRICS_HEAD_BYTES: usize = 16 << 10;

/// Maximum time for the holder and other processes to report their state. With less, a busy
/// machine looks unhealthy. With more, a stopped holder is reported later.
pub(crate) const METRICS_ANSWER_TIME: Duration = Duration::from_secs(1);

/// Maximum age of a sample that is reused for another request. It limits the load that many
/// scrapers cause.
pub(crate) const METRICS_SAMPLE_AGE: Duration = Duration::from_millis(500);

/// Maximum number of deaths that the page lists.
pub(crate) const METRICS_DEATHS: usize = 20;

/// Maximum number of rows in each table of the page. Without a limit, browsers would take too long
/// to show the page of a full holder.
pub(crate) const METRICS_ROWS: usize = 500;

/// Maximum time for the successor of an upgraded program to take over. With a shorter time, a
/// program on a busy machine could be mistaken for one that cannot take over.
pub(crate) const UPGRADE_TIME: Duration = Duration::from_secs(30);

/// Interval between two checks of a holder that is being upgraded.
pub(crate) const UPGRADE_LOOK: Duration = Duration::from_millis(20);
