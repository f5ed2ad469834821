//! Counts and times of the CUDA backend.
//!
//! "Measured" refers to the tables in `docs/cuda.md`.

use std::time::Duration;

// How a thread waits for a queue to finish.

/// Shortest and longest sleep of a thread in `finish`.
pub(super) const FINISH_SLEEP_SHORTEST: Duration = Duration::from_micros(20);
pub(super) const FINISH_SLEEP_LONGEST: Duration = Duration::from_millis(1);

// What a stream has in flight.

/// Number of driver calls that a stream may hold while it waits. Measured: after 1,020 calls, the
/// next call returns only when the stream continues, and several streams may share that limit.
pub(super) const STREAM_MAX_CALLS: u32 = 256;

// Streams that wait.

/// Interval at which the scheduler tends queues with commands in flight. A longer interval notices
/// the unfinished signals of a dead process later.
pub(super) const TEND_INTERVAL: Duration = Duration::from_millis(50);

// Deferred driver calls.

/// Memory, in bytes, that may wait to be unregistered before streams that would wait are held back
/// for that. A smaller limit holds streams back more often, and a larger one leaves more memory
/// pinned.
pub(super) const QUIET_MAX_BYTES: usize = 256 << 20;

/// Time that a thread waits for a deferred driver call that it requested, and time that streams are
/// held back for successive calls. If the thread waits too briefly, pinned memory may still exist
/// when its owner continues.
pub(super) const DEFERRED_CALL_WAIT: Duration = Duration::from_millis(10);
/// Shortest and longest interval between checks whether streams still wait, while calls are
/// deferred.
pub(super) const DEFERRED_SLEEP_SHORTEST: Duration = Duration::from_millis(1);

/// Time after which a deferred call is assumed to wait for a stream that this library does not
/// know, unless the call's bytes explain more. Measured: 29 ms while other processes start. A
/// shorter time treats more slow calls as stuck, and then the driver may delay copies. A longer
/// time holds streams back longer if such a call waits for them.
pub(super) const CALL_STUCK_AFTER: Duration = Duration::from_secs(1);

/// Maximum time that the end of a context, or of a queue in it, waits for this library's threads
/// inside it. After this time, a slow call may still be running when the program ends its context.
pub(super) const CONTEXT_END_WAIT: Duration = Duration::from_secs(1);

// Streams made ahead.

// Memory between a process and its devices.

// The clocks of host and device.

// The driver's own calls.
