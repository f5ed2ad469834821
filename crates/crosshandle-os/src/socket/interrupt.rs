//! Calls that the caller can end early, by a timeout or by a function that says whether to give up.
//!
//! Both belong to the calling thread, so every wait for another process finds them at any depth.
//! For the code that cleans up, an interrupted wait looks like a wait that timed out.

use crosshandle_types::sync::{Condvar, Deadline, MutexGuard};
use rustix::io::Errno;
use std::cell::Cell;
use std::time::Duration;

/// Interval at which a wait for another process checks whether the program has interrupted it. It
/// limits how late Ctrl-C in Python ends a call.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(50);

/// The conditions that end the calling thread's waits.
#[derive(Clone, Copy)]
struct Scope {
    look: Option<fn() -> bool>,
    end: Deadline,
}

thread_local! {
    static SCOPE: Cell<Scope> = const { Cell::new(Scope { look: None, end: Deadline::NEVER }) };
}

/// Restores the outer scope when dropped, even by a panic.
struct Restore(Scope);

impl Drop for Restore {
    fn drop(&mut self) {
        SCOPE.set(self.0);
    }
}

/// Calls `call`, and lets its waits for other processes end early.
///
/// While the calling thread waits for another process, such as an exporter or a holder, it calls
/// `look` about every 50 ms. If `look` returns true, the wait ends with
/// [`Error::Interrupted`](crosshandle_types::error::Error::Interrupted). If a `timeout` is given,
/// it covers the whole call. After the timeout, these waits end with
/// [`Error::TimedOut`](crosshandle_types::error::Error::TimedOut) or
/// [`Error::NoAnswer`](crosshandle_types::error::Error::NoAnswer).
///
/// Waits for events and queues have their own timeouts and are not affected. Work that this library
/// hands to other threads is not affected either. Calls may be nested: the shorter timeout and the
/// inner function apply.
pub fn interruptible<R>(
    look: fn() -> bool,
    timeout: Option<Duration>,
    call: impl FnOnce() -> R,
) -> R {
    let around = SCOPE.get();
    let _restore = Restore(around);
    SCOPE.set(Scope {
        look: Some(look),
        end: deadline(Deadline::after_optional(timeout)),
    });
    call()
}

/// Returns a wait's deadline, or the calling thread's deadline if that is earlier.
pub fn deadline(own: Deadline) -> Deadline {
    own.min(SCOPE.get().end)
}

/// Returns how long to wait before the next call of [`check`], for a wait with this deadline.
pub fn step(deadline: Deadline) -> Deadline {
    match SCOPE.get().look {
        None => deadline,
        Some(_) => deadline.min(Deadline::after(INTERRUPT_INTERVAL)),
    }
}

/// Fails with [`Errno::CANCELED`] if the thread's function says to give up.
pub fn check() -> Result<(), Errno> {
    match SCOPE.get().look {
        Some(look) if look() => Err(Errno::CANCELED),
        _ => Ok(()),
    }
}

/// Waits while `condition` is true. Fails with [`Errno::TIMEDOUT`] at the deadline, or with the
/// error of [`check`].
pub fn wait_while<'a, T>(
    changed: &Condvar,
    mut guard: MutexGuard<'a, T>,
    end: Deadline,
    mut condition: impl FnMut(&mut T) -> bool,
) -> (MutexGuard<'a, T>, Result<(), Errno>) {
    let end = deadline(end);
    loop {
        let is_late;
        (guard, is_late) = changed.wait_until_while(guard, step(end), &mut condition);
        if !is_late {
            return (guard, Ok(()));
        }
        if end.is_over() {
            return (guard, Err(Errno::TIMEDOUT));
        }
        if let Err(errno) = check() {
            return (guard, Err(errno));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::{self, wait_until};
    use rustix::event::PollFlags;
    use std::os::fd::AsFd;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_wait_ends_when_its_thread_is_told_to() {
        let (ours, _theirs) = socket::pair().expect("two sockets");
        let wait = |deadline| wait_until(ours.as_fd(), PollFlags::IN, deadline);
        let began = Instant::now();
        let late = Deadline::after(LONG);
        assert_eq!(
            interruptible(|| true, None, || wait(late)),
            Err(Errno::CANCELED)
        );
        assert_eq!(
            interruptible(|| true, None, || wait(Deadline::NEVER)),
            Err(Errno::CANCELED)
        );
        let short = Some(Duration::from_millis(120));
        let timed = interruptible(|| false, short, || wait(late));
        assert_eq!(timed, Err(Errno::TIMEDOUT));
        assert!(began.elapsed() < LONG / 2);
        // The scope has ended.
        assert_eq!((late, late), (deadline(late), step(late)));
    }
}
