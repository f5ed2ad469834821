//! Times and counts that control the threads.

use std::time::Duration;

/// Time after which an idle background thread ends. Starting a new thread takes about 50 µs.
pub(super) const BACKGROUND_IDLE: Duration = Duration::from_secs(2);

/// Time after which the idle disposer thread ends.
pub(super) const DISPOSER_IDLE: Duration = Duration::from_secs(1);

/// Maximum number of jobs of [`background::run`](super::background::run) that run at the same time.
/// With a lower limit, drops that block in a driver delay other drops sooner. With a higher limit,
/// a burst of drops uses more of the process's thread limit.
pub(super) const MAX_BOUNDED_JOBS: usize = 16;

/// Time after which another thread retries to start a background thread that the system refused to
/// start.
pub const START_RETRY: Duration = Duration::from_millis(10);

/// Maximum number of epoll events that the exchange thread receives in one system call.
pub(super) const EPOLL_EVENTS: usize = 64;

/// Maximum number of sources that the exchange thread calls before it asks the kernel again which
/// ones are ready. With a larger value, new requests wait for longer. With a smaller one, the
/// thread makes more system calls under load.
pub(super) const MAX_TURNS: usize = 8;

/// Time after which the exchange thread asks the kernel again which sources are ready.
pub(super) const TURNS_TIME: Duration = Duration::from_micros(250);

/// Time that a source rests when it asks for a rest ([`Next::Rest`](super::exchange::Next)),
/// usually because the process has no descriptors left. Also the time that the exchange thread
/// rests if it cannot wait.
pub(super) const SOURCE_REST: Duration = Duration::from_millis(10);

/// Maximum time that a thread waits for background jobs that call a driver
/// ([`driver_jobs::wait`](super::driver_jobs::wait)). If it is too short, the process may end
/// during a call to a slow driver, which drivers don't survive. If a driver hangs, the end of a
/// context is delayed by this time.
pub(super) const DRIVER_JOB_WAIT: Duration = Duration::from_secs(1);

/// Ratio of the time since the last progress to the next sleep of a
/// [`Backoff`](super::backoff::Backoff).
pub(super) const BACKOFF_STEPS: u32 = 8;
