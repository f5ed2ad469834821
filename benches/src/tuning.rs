//! Times and counts that apply to all scenarios, or that only affect waiting. Each has its unit and
//! its reason.
//!
//! Sizes and counts that define a row (its batch, its objects, its warm-up) are in the file of the
//! scenario that measures it.

use std::time::Duration;

// ---- Rounds ----

/// Number of rounds in a full run, in which the library and the raw technique alternate.
///
/// An odd number has a middle value. With fewer rounds, one disturbance of the machine could move a
/// median.
pub(crate) const FULL_ROUNDS: usize = 11;

/// Number of rounds in a quick run, whose results must not be quoted.
pub(crate) const QUICK_ROUNDS: usize = 5;

/// Number of pairs of clock readings, whose median is the clock's cost. They take less than a
/// millisecond.
pub(crate) const CLOCK_SAMPLES: usize = 10_001;

/// Load of the machine, as a fraction of its processors, above which a run starts with a warning.
///
/// A much lower limit would warn about the benchmark's own build.
pub(crate) const BUSY_LOAD_PER_CPU: f64 = 0.3;

// ---- Links between processes ----

/// Maximum length of a link's message, in bytes.
///
/// A full message must fit into a socket's default send buffer of 208 KiB. The handles of 1,000
/// objects must fit into one message.
pub(crate) const MESSAGE_MAX_BYTES: usize = 128 * 1024;

/// Maximum number of descriptors in one message. The kernel allows 253, and no scenario sends more
/// than 64.
pub(crate) const DESCRIPTORS_MAX: usize = 64;

/// Time in which the other processes may report after one process has failed.
///
/// The cause is often in another process, which reports within milliseconds, or later on a busy
/// machine.
pub(crate) const FAILURE_GRACE: Duration = Duration::from_secs(2);

// ---- Pauses ----

/// Interval at which the leader checks whether a follower sleeps.
///
/// A shorter interval would take the processor from followers that are about to sleep.
pub(crate) const SLEEP_CHECK_INTERVAL: Duration = Duration::from_micros(50);

/// Number of reads of a word after which a spinning process yields its processor once.
///
/// The other process may need this processor. Fewer reads make each read slower. More reads delay
/// the other process if both share a processor.
pub(crate) const LOOKS_PER_YIELD: u32 = 1024;

/// Time limit of a check of a GPU's memory.
///
/// The check copies eight bytes, after commands that take less than a second. The limit turns a
/// hang into an error.
pub(crate) const GPU_CHECK_TIMEOUT: Duration = Duration::from_secs(20);

/// Pause between two signals of awaited events.
///
/// The awaiting threads must fall asleep again in between. On a slow machine, a shorter pause would
/// find some of them awake, and wake-ups would look too fast.
pub(crate) const AWAITED_PAUSE: Duration = Duration::from_micros(300);

// ---- Tolerances ----

/// Maximum change of the machine's shared memory by other programs during a round, in bytes.
///
/// A round frees 1 GiB, so a quarter of that separates a failure to free from noise.
pub(crate) const SHARED_MEMORY_NOISE_BYTES: u64 = 256 << 20;
