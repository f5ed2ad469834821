//! Waits for words in memory that processes share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;

/// Interval at which a waiter checks whether the signal can still arrive.
const SLICE: Duration = Duration::from_millis(5);

/// The time at which a wait ends, if it has a timeout.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) const NEVER: Self = Self(None);

    /// Returns the deadline `nanoseconds` from now. The largest value means no deadline.
    pub(crate) fn after(nanoseconds: u64) -> Self {
        match nanoseconds {
            u64::MAX => Self::NEVER,
            _ => Self(Instant::now().checked_add(Duration::from_nanos(nanoseconds))),
        }
    }

    fn left(self) -> Duration {
        self.0.map_or(Duration::MAX, |at| {
            at.saturating_duration_since(Instant::now())
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waited {
    Done,
    TimedOut,
    /// The signal can no longer arrive.
    Gone,
}

/// A word that waiters sleep on, in memory that processes may share.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Bell {
    /// Changes with every call of [`ring`](Self::ring).
    rings: AtomicU32,
    /// The number of waiters that sleep or are about to sleep. A killed waiter leaves the number
    /// too high, which only costs wake-up calls without a sleeper.
    sleepers: AtomicU32,
}

impl Bell {
    /// Waits until `done` returns true. The thread that makes it true must ring afterwards.
    pub(crate) fn wait(
        &self,
        deadline: Deadline,
        gone: impl Fn() -> bool,
        done: impl Fn() -> bool,
    ) -> Waited {
        if done() {
            return Waited::Done;
        }
        loop {
            let left = deadline.left().min(SLICE);
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            let seen = self.rings.load(Ordering::SeqCst);
            // This check comes after both accesses. A thread that makes `done` true either sees the
            // sleeper or is seen here.
            let waited = if done() {
                Some(Waited::Done)
            } else if gone() {
                Some(Waited::Gone)
            } else if left.is_zero() {
                Some(Waited::TimedOut)
            } else {
                let timeout = rustix::time::Timespec {
                    tv_sec: 0,
                    tv_nsec: i64::from(left.subsec_nanos()),
                };
                // Whether the thread was woken, timed out or never slept, the loop checks again.
                let _ = futex::wait(&self.rings, futex::Flags::empty(), seen, Some(&timeout));
                None
            };
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
            if let Some(waited) = waited {
                return waited;
            }
        }
    }

    /// Wakes all waiters in every process.
    pub(crate) fn ring(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            let _ = futex::wake(&self.rings, futex::Flags::empty(), u32::MAX >> 1);
        }
    }
}
