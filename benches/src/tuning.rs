//! Constants of time and count that hold for all scenarios, or that only wait, each with its unit,
//! its reason, and what another value would do.
//!
//! The sizes and counts that define a row (its batch, its objects, its warm-up) stand with the
//! scenario that measures it.

use std::time::Duration;

// ---- Rounds ----

/// Rounds in which ours and the raw technique alternate, in a full run.
///
/// An odd number has a middle. Half lets one disturbance of the machine move a median; double takes
/// twice the time, and the medians stay.
pub(crate) const FULL_ROUNDS: usize = 11;

/// Rounds in a quick run, whose figures nobody quotes.
pub(crate) const QUICK_ROUNDS: usize = 5;

/// Pairs of clock readings of which the median is the clock's cost.
///
/// The median of a thousand would do. They take less than a millisecond.
pub(crate) const CLOCK_SAMPLES: usize = 10_001;

/// Load of the machine, as a part of its processors, above which a run starts with a warning.
///
/// Half warns about the benchmark's own build; double lets another program take half the machine.
pub(crate) const BUSY_LOAD_PER_CPU: f64 = 0.3;

// ---- Links between processes ----

/// Longest message of a link, in bytes.
///
/// A full message must fit into a socket's default send buffer, which has 208 KiB. Half is too
/// short for the handles of 1,000 objects.
pub(crate) const MESSAGE_MAX_BYTES: usize = 128 * 1024;

/// Most descriptors in one message. The kernel allows 253; no scenario sends more than 64.
pub(crate) const DESCRIPTORS_MAX: usize = 64;

/// Time in which the other processes may report after one process has failed.
///
/// The cause is often in another process, which reports within milliseconds. Half could lose the
/// cause on a busy machine; double delays a failing run.
pub(crate) const FAILURE_GRACE: Duration = Duration::from_secs(2);

// ---- Pauses ----

/// Interval at which the leader looks whether a follower sleeps.
///
/// A shorter one takes the processor from followers that are about to sleep; a longer one only
/// makes the run longer.
pub(crate) const SLEEP_CHECK_INTERVAL: Duration = Duration::from_micros(50);

/// Interval at which a leader looks whether another process's threads have reached a state.
///
/// A shorter one takes the processor from them; a longer one only makes the run longer.
pub(crate) const STATE_CHECK_INTERVAL: Duration = Duration::from_micros(500);

/// Time within which the victims of a row die, counted from when all waiters sleep.
///
/// It spreads the deaths over the intervals at which waiters look for themselves, 40 ms. With half, the
/// looks never come soon after a death; double makes the run longer.
pub(crate) const DEATHS_SPREAD: Duration = Duration::from_millis(40);

/// Time between two rounds of an attack on sleepers.
///
/// An attack should meet each sleeper before its next sleep, and not take a processor for itself.
pub(crate) const ATTACK_PAUSE: Duration = Duration::from_micros(200);

/// Time in which an attack must have met a sleeper, or the row fails.
///
/// It ends a hang, and says nothing about speed.
pub(crate) const ATTACK_LIMIT: Duration = Duration::from_secs(10);

/// Time in which the library's threads close the connections of importers that have ended.
///
/// Their work is short, but they must get a processor. With much less, open connections could count
/// as growth on a busy machine; double makes the run longer.
pub(crate) const CONNECTIONS_CLOSE_TIME: Duration = Duration::from_millis(200);

/// Looks at a word after which a watching process yields its processor once.
///
/// The other process may need this processor. Fewer looks make a look slower; more delay the other
/// process where both share a processor.
pub(crate) const LOOKS_PER_YIELD: u32 = 1024;

/// Time that a check of a GPU's memory may take.
///
/// It copies eight bytes, after commands that take less than a second. The limit turns a hang into
/// an error.
pub(crate) const GPU_CHECK_TIMEOUT: Duration = Duration::from_secs(20);

/// Time between two signals of events that are awaited.
///
/// Long enough for whoever awaits them to sleep again. With half, some are still awake on a slow machine
/// and wake-ups seem short; double makes the run longer.
pub(crate) const AWAITED_PAUSE: Duration = Duration::from_micros(300);

/// Time of which the processor time is measured while nothing happens, and before that.
///
/// Some fifty looks of a thread that awaits. With half, single looks show; double makes the run longer.
pub(crate) const AWAITED_REST: Duration = Duration::from_secs(2);

// ---- Tolerances ----

/// Bytes by which other programs may change the machine's shared memory during a round.
///
/// A round frees 1 GiB, so a quarter tells a failure to free from noise.
pub(crate) const SHARED_MEMORY_NOISE_BYTES: u64 = 256 << 20;
