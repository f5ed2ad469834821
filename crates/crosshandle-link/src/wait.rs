//! Condition variables with a deadline, and without poison.

use crosshandle::Deadline;
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

/// Waits for a notification, until `deadline` at most. May return without one.
pub(crate) fn wait_until<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    deadline: Deadline,
) -> MutexGuard<'a, T> {
    match deadline.remaining() {
        None => condvar.wait(guard).unwrap_or_else(PoisonError::into_inner),
        Some(left) => {
            // The clock of a condition variable has an end.
            let left = left.min(Duration::from_secs(1 << 32));
            let waited = condvar.wait_timeout(guard, left);
            waited.unwrap_or_else(PoisonError::into_inner).0
        }
    }
}
