//! Constants of time and count, each with its unit, its reason, and what another value would do.

use std::ops::RangeInclusive;
use std::time::Duration;

// ---- Messages between the two processes ----

/// Longest message that a process accepts from the other one.
///
/// A real message has two handles and a few numbers, so a longer line comes from another program.
/// Half or double makes no difference; without a limit such a program could fill the memory.
pub(crate) const MESSAGE_MAX_BYTES: usize = 1 << 20;

/// Longest handle that is read from standard input, several times the length of a real one.
///
/// Half would do. Double would read more of an input that is no handle.
pub(crate) const HANDLE_LINE_MAX_BYTES: u64 = 4096;

// ---- Deadlines ----

/// Time that a child process may take to end after its pipes have closed.
///
/// The kernel closes a dying process's pipes shortly before the process can be waited for. Half
/// would do; much less could lose the exit status on a busy machine, and the exit status says best
/// why the process has failed.
pub(crate) const CHILD_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time that each step of `doctor`'s exchange with its child process may take.
///
/// All steps together take milliseconds. Half could report a busy machine as a problem; double
/// keeps a user waiting for what is broken.
pub(crate) const DOCTOR_STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which `doctor` waits for events that are not signalled.
///
/// The wait must reach the kernel, which takes microseconds. A longer one delays the report.
pub(crate) const DOCTOR_UNSIGNALLED_WAIT: Duration = Duration::from_millis(2);

/// Time for which `doctor` waits for an event that is signalled already.
///
/// The wait returns at once unless the system call is broken. Double would delay that report.
pub(crate) const DOCTOR_SIGNALLED_WAIT: Duration = Duration::from_secs(2);

/// Time that the demo's first process may take to make what it shares.
///
/// Initialising a GPU's driver and allocating most of its memory takes seconds. Half could end a
/// demo on a machine with many GPUs.
pub(crate) const DEMO_OFFER_TIMEOUT: Duration = Duration::from_secs(60);

/// Time that the demo allows for each step, however little memory is shared.
///
/// The steps of the default size take less than a second. Half could end a demo on a busy machine;
/// double delays the report that a process stands still.
pub(crate) const DEMO_STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// Speed in bytes per second below which a process that fills or verifies memory counts as
/// standing still.
///
/// Memory and buses are many times as fast, so only an emulator comes near. Double could end a demo
/// in one; half delays the report that a process stands still.
pub(crate) const DEMO_MIN_BYTES_PER_SECOND: u64 = 32 << 20;

// ---- The demo's measurements ----

/// Smallest memory that the demo shares, in bytes: two halves with room for a few words each.
pub(crate) const DEMO_MIN_BYTES: u64 = 4096;

/// Most round trips of one ping-pong.
///
/// The 99th percentile of 20,000 samples is stable. Half makes it noisier; double costs time on
/// slow machines only, since `DEMO_PING_TIME` ends the ping-pong there.
pub(crate) const DEMO_PINGS_MAX: u64 = 20_000;

/// Round trips after which a ping-pong may end: it has then passed the middle, at which a test may
/// stop a process.
pub(crate) const DEMO_PINGS_BEFORE_MIDDLE: u64 = 100;

/// Time after which a ping-pong ends even if round trips are missing.
///
/// There are two ping-pongs, and a user waits for both. Half gives fewer samples on a slow machine.
pub(crate) const DEMO_PING_TIME: Duration = Duration::from_millis(500);

/// Repetitions of an operation whose mean time is measured.
///
/// The clock's own cost vanishes in the mean of a thousand. Double costs milliseconds.
pub(crate) const DEMO_MEAN_REPEATS: u32 = 10_000;

/// Time after which the demo stops reading the memory again.
///
/// With the default size this gives dozens of passes. Half makes the median noisier.
pub(crate) const DEMO_READ_TIME: Duration = Duration::from_millis(300);

/// Fewest and most passes of reading the memory.
///
/// A median needs three. Beyond a thousand passes the median no longer changes.
pub(crate) const DEMO_READ_PASSES: RangeInclusive<u32> = 3..=1000;

// ---- Copies ----

/// Bytes that are copied to or from device memory at a time.
///
/// Large enough to reach the full speed of a copy, small enough to stay in a core's cache. Half
/// costs more calls; double leaves the cache of small machines.
pub(crate) const COPY_CHUNK_BYTES: usize = 256 << 10;

/// Bytes that are read from or written to a file at a time.
///
/// System calls no longer count at this size. Progress is shown after each part, so a much larger
/// one would make it jump.
pub(crate) const FILE_CHUNK_BYTES: usize = 1 << 20;

/// Bytes of memory that `doctor` shares with its child process.
pub(crate) const DOCTOR_SHARED_BYTES: usize = 64 << 10;

/// Bytes of memory in which `doctor` looks for huge pages: two of the usual size.
pub(crate) const DOCTOR_HUGE_PAGES_BYTES: usize = 4 << 20;

// ---- Progress ----

/// Time for which progress stays hidden: a command that is quicker shows none.
///
/// Half makes quick commands flicker; double makes slow ones look stuck.
pub(crate) const PROGRESS_DELAY: Duration = Duration::from_millis(400);

/// Interval at which progress is redrawn, so that it moves during a long step.
///
/// Half costs processor time; double makes the movement jerky.
pub(crate) const PROGRESS_REDRAW_INTERVAL: Duration = Duration::from_millis(100);

// ---- Watching other processes ----

/// Time that `top` gives all processes to answer. One that is stopped delays each picture by it.
///
/// An answer takes a millisecond. Half could call a busy process silent; double shows the others
/// later.
pub(crate) const TOP_ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// Shortest time between two looks of `top`, and the one between the first two.
///
/// Rates of a shorter time jump. Double makes the first rates come later.
pub(crate) const TOP_MIN_INTERVAL: Duration = Duration::from_millis(200);

/// Interval at which `top` looks for new answers and signals while no key is pressed.
///
/// Half costs processor time; double makes the end by a signal slow to see.
pub(crate) const TOP_KEY_INTERVAL: Duration = Duration::from_millis(50);

/// How often `link share` looks whether its link has ended.
///
/// Halved, an idle process wakes more often; doubled, neighbours that come meanwhile are refused for longer.
pub(crate) const LINK_LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Bytes of the stack of the thread that runs a command. Halved: unoptimized builds may overflow it. Doubled: nothing,
/// since pages that are not touched take no memory.
pub(crate) const COMMAND_STACK_BYTES: usize = 8 << 20;

/// Time for which a successor tries to bind the port of metrics that its holder had. Halved: a busy machine may not have
/// closed the port yet. Doubled: a port that another program has is reported later.
pub(crate) const METRICS_BIND_TIME: Duration = Duration::from_secs(10);

/// Time between two attempts to do so. Halved: twice the attempts. Doubled: metrics are back that much later.
pub(crate) const METRICS_BIND_INTERVAL: Duration = Duration::from_millis(10);

/// Bytes of the stack of a thread that answers at the port of metrics. Halved: unoptimized builds may overflow it.
/// Doubled: nothing, since pages that are not touched take no memory.
pub(crate) const METRICS_STACK_BYTES: usize = 1 << 20;

/// Connections to the port of metrics at a time; others are closed. Halved: scrapers and people may disturb each other.
/// Doubled: a flood takes twice the threads and descriptors.
pub(crate) const METRICS_CONNECTIONS: usize = 16;

/// Time that a client of the port of metrics has to send its request, and to take the answer. Halved: a client over a slow
/// network fails. Doubled: a silent one keeps its place for longer.
pub(crate) const METRICS_REQUEST_TIME: Duration = Duration::from_secs(2);

/// Bytes of the longest head of a request. Halved: long cookies of other programs at the same host may not fit. Doubled: a
/// flood takes twice the memory.
pub(crate) const METRICS_HEAD_BYTES: usize = 16 << 10;

/// Time that a holder, and other processes, have to say how they are. Halved: a busy machine looks unhealthy. Doubled: a
/// stopped holder is reported later.
pub(crate) const METRICS_ANSWER_TIME: Duration = Duration::from_secs(1);

/// Age up to which an answer serves another request. Halved: many scrapers cost the holder twice as much. Doubled: a
/// person sees changes that much later.
pub(crate) const METRICS_SAMPLE_AGE: Duration = Duration::from_millis(500);

/// Deaths that the page lists. Halved: a burst hides earlier ones. Doubled: a longer page.
pub(crate) const METRICS_DEATHS: usize = 20;

/// Rows of each table of the page. Halved: ordinary numbers of names are cut. Doubled: a page of a full holder takes a
/// browser twice the time.
pub(crate) const METRICS_ROWS: usize = 500;

/// Time that a successor of an upgraded program has to take everything over. Halved: a busy machine looks like a
/// program that does not follow the holder. Doubled: a program that does not is told of later.
pub(crate) const UPGRADE_TIME: Duration = Duration::from_secs(30);

/// Time between looks at a holder that is upgraded. Halved: twice the questions. Doubled: the command ends that much
/// later.
pub(crate) const UPGRADE_LOOK: Duration = Duration::from_millis(20);
