//! Waits on condition variables with a deadline, and short polls before a sleep. The poisoning of
//! locks is ignored.

use crosshandle::adapter_support::Deadline;
use std::sync::{Condvar, LazyLock, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time for which a thread of a busy link polls before it sleeps. In a virtual machine, a sleeping
/// thread needs about this long to wake up.
const POLL: Duration = Duration::from_micros(150);

/// Number of CPUs from which on threads poll. A transfer has two polling threads on each side, and
/// both sides may be on this machine.
const POLLING_CPUS: usize = 8;

/// Calls `attempt` until it returns something, for a short time after `since`, the last use of the
/// link. On machines with few CPUs it does not poll.
pub(crate) fn poll_since<T>(since: Instant, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    static POLLS: LazyLock<bool> = LazyLock::new(|| {
        thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= POLLING_CPUS)
    });
    while *POLLS && since.elapsed() < POLL {
        if let Some(found) = attempt() {
            return Some(found);
        }
        thread::yield_now();
    }
    None
}

/// Waits for a notification, at most until `deadline`. May return early without a notification.
pub(crate) fn wait_until<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    deadline: Deadline,
) -> MutexGuard<'a, T> {
    match deadline.remaining() {
        None => condvar.wait(guard).unwrap_or_else(PoisonError::into_inner),
        Some(left) => {
            // `wait_timeout` cannot wait for arbitrarily long times.
            let left = left.min(Duration::from_secs(1 << 32));
            let waited = condvar.wait_timeout(guard, left);
            waited.unwrap_or_else(PoisonError::into_inner).0
        }
    }
}
