//! Calls that their caller can end early: a deadline for everything that they wait for, and a function that
//! says whether to give up.
//!
//! Both belong to the calling thread, so that every wait for another process finds them, however deep it is.
//! A wait that is given up looks like one that timed out to whoever cleans up after it.

use crate::os::tuning::INTERRUPT_INTERVAL;
use crate::sync::{Condvar, Deadline, MutexGuard};
use rustix::io::Errno;
use std::cell::Cell;
use std::time::Duration;

/// What the calling thread's waits obey.
#[derive(Clone, Copy)]
struct Scope {
    look: Option<fn() -> bool>,
    end: Deadline,
}

thread_local! {
    static SCOPE: Cell<Scope> = const { Cell::new(Scope { look: None, end: Deadline::NEVER }) };
}

/// Restores the scope around when dropped, also by a panic.
struct Restore(Scope);

impl Drop for Restore {
    fn drop(&mut self) {
        SCOPE.set(self.0);
    }
}

/// Calls `call`, and lets its waits for other processes end early.
///
/// While the calling thread waits for another process, such as an exporter or a holder, it calls `look` about every
/// 50 ms. If `look` returns true, the wait ends with [`Error::Interrupted`](crate::Error::Interrupted). With
/// a `timeout`, those waits also end when it has passed since the beginning of the call: with
/// [`Error::TimedOut`](crate::Error::TimedOut) or [`Error::NoAnswer`](crate::Error::NoAnswer).
///
/// Waits for events and queues have timeouts of their own, and are not affected. Neither is work that this
/// library hands to other threads. Calls may be nested: the shorter timeout and the inner function count.
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

/// Returns a wait's deadline, or the calling thread's if that is earlier.
pub(crate) fn deadline(own: Deadline) -> Deadline {
    own.min(SCOPE.get().end)
}

/// Returns until when to wait before [`check`] is called again, if the wait has this deadline.
pub(crate) fn step(deadline: Deadline) -> Deadline {
    match SCOPE.get().look {
        None => deadline,
        Some(_) => deadline.min(Deadline::after(INTERRUPT_INTERVAL)),
    }
}

/// Asks whether to give up: [`Errno::CANCELED`].
pub(crate) fn check() -> Result<(), Errno> {
    match SCOPE.get().look {
        Some(look) if look() => Err(Errno::CANCELED),
        _ => Ok(()),
    }
}

/// Waits as long as `condition` holds, until a deadline ([`Errno::TIMEDOUT`]) or until [`check`] says to give up.
pub(crate) fn wait_while<'a, T>(
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
    use crate::os::socket::{self, wait_until};
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
