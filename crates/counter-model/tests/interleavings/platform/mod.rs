//! The machine that the protocol runs on in the model: what the library's own `platform` offers,
//! under the scheduler's control.
//!
//! Threads stand for processes. Every atomic operation is a point where the scheduler may run
//! somebody else, and where a process may be killed ([`live_for`]).

mod atomics;
mod chance;
mod clock;
mod fate;
mod futex;

pub(crate) use atomics::{AtomicU32, AtomicU64};
pub(crate) use chance::{one_in, pick};
pub(crate) use clock::Instant;
pub(crate) use fate::live_for;
pub(crate) use futex::{
    naps, naps_end, naps_end_up_to, sleep, sleep_any, sleepers, wake_all, wakes,
};
pub(crate) use std::sync::atomic::Ordering;

/// Whether waiters spin before they sleep: each test program says so at its root.
pub(crate) const MAY_SPIN: bool = crate::MAY_SPIN;

/// A pause in a spinning loop: somebody else's turn, and a moment passes.
pub(crate) fn spin_hint() {
    clock::pass(clock::SPIN_ROUND);
    shuttle::thread::yield_now();
}

/// One CPU or another: a process may migrate between any two calls.
pub(crate) fn current_cpu() -> u32 {
    pick(2) as u32
}
