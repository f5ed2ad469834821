//! Constants of time and count of the threads.

use std::time::Duration;

/// Time that a background thread without a job stays for another one. Halved or doubled: a program
/// that needs a background thread every few seconds starts one more or less often, at about 50 µs.
pub(super) const BACKGROUND_IDLE: Duration = Duration::from_secs(2);

/// Time that the disposer thread stays without anything to dispose of. Halved or doubled: a process
/// whose peers send what may block every second or so starts a thread more or less often.
pub(super) const DISPOSER_IDLE: Duration = Duration::from_secs(1);

/// Jobs of [`background::run`](super::background::run) that run at a time. Halved: drops that wait
/// in a driver hold up other drops sooner. Doubled: a burst of them takes more threads of the
/// process's limit.
pub(super) const MAX_BOUNDED_JOBS: usize = 16;

/// Time after which another thread tries again to start a background thread that the system did not start.
/// Halved: more system calls while the want lasts. Doubled: a program's function is called that much later.
pub(crate) const START_RETRY: Duration = Duration::from_millis(10);

/// Events that the exchange thread takes from the kernel in one call. Halved or doubled: more or
/// fewer system calls while more connections than this are ready at once.
pub(super) const EPOLL_EVENTS: usize = 64;

/// Time that a source rests that asked for it ([`Next::Rest`](super::exchange::Next)), for want of
/// descriptors as a rule, and that the exchange thread rests if it cannot wait. Halved: twice the needless looks while the want lasts. Doubled: an
/// importer is answered that much later after the want has ended.
pub(super) const SOURCE_REST: Duration = Duration::from_millis(10);

/// The longest time that a thread waits for background jobs that call a driver
/// ([`driver_jobs::wait`](super::driver_jobs::wait)). Halved: a process may end beside a call to a
/// slow driver, which drivers don't survive. Doubled: a driver that hangs delays the end of a
/// context by that much.
pub(super) const DRIVER_JOB_WAIT: Duration = Duration::from_secs(1);

/// Sleeps of a [`Backoff`](super::backoff::Backoff) that would fill the time since the last progress.
/// Halved: twice the lateness. Doubled: twice the looks.
pub(super) const BACKOFF_STEPS: u32 = 8;
