//! Waiting for words in memory that processes share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;

/// A waiter looks this often whether what it waits for can still come.
const SLICE: Duration = Duration::from_millis(5);

/// How long a wait may take.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) const NEVER: Self = Self(None);

    /// From now on, in nanoseconds: the largest value means for ever.
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

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waited {
    Done,
    TimedOut,
    /// What was waited for cannot come any more.
    Gone,
}

/// Waits until `done`. Whoever makes it true changes `word` and calls [`wake`].
pub(crate) fn wait(
    word: &AtomicU32,
    deadline: Deadline,
    gone: impl Fn() -> bool,
    done: impl Fn() -> bool,
) -> Waited {
    loop {
        let seen = word.load(Ordering::Acquire);
        if done() {
            return Waited::Done;
        }
        if gone() {
            return Waited::Gone;
        }
        let left = deadline.left().min(SLICE);
        if left.is_zero() {
            return Waited::TimedOut;
        }
        let timeout = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        // Woken, late, or changed before the sleep: all mean another look.
        let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&timeout));
    }
}

/// Wakes all that wait for `word`, in every process.
pub(crate) fn wake(word: &AtomicU32) {
    word.fetch_add(1, Ordering::Release);
    let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
}
