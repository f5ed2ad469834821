//! Waits on condition variables with a deadline. The poisoning of locks is ignored.

use crosshandle::adapter_support::Deadline;
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

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
