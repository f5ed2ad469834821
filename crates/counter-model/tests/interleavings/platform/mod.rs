//! The platform on which the protocol runs under shuttle. It has the interface of the library's own
//! `platform`, under the scheduler's control.
//!
//! Threads stand for processes. Before every atomic operation the scheduler may run another
//! process, and the process may be killed ([`live_for`]).

mod atomics;
mod chance;
mod clock;
mod doorbell;
mod fate;
mod futex;

pub(crate) use atomics::{AtomicU32, AtomicU64};
pub(crate) use chance::{one_in, pick};
pub(crate) use clock::Instant;
pub(crate) use doorbell::{Doorbell, add_doorbell, mute_doorbells, number_entries_from, ring};
pub(crate) use fate::live_for;
pub(crate) use futex::{
    allow_timeouts, allow_timeouts_up_to, sleep, sleep_any, sleepers, sleeps, wake_all, wakes,
};
pub(crate) use std::sync::atomic::Ordering;

/// Whether waiters spin before they sleep. The root of each test program decides it.
pub(crate) const MAY_SPIN: bool = crate::MAY_SPIN;

/// Pauses in a spinning loop. Lets another process run, and advances the clock.
pub(crate) fn spin_hint() {
    clock::pass(clock::SPIN_ROUND);
    shuttle::thread::yield_now();
}

/// Returns one of two CPUs at random, because a process may migrate between any two calls.
pub(crate) fn current_cpu() -> u32 {
    pick(2) as u32
}

/// The signal that a sleeper waits for, for reports.
#[allow(dead_code, reason = "no tool looks here")]
pub(crate) struct Awaited {
    pub(crate) word: usize,
    pub(crate) slot: usize,
    pub(crate) number: u64,
}

/// Does nothing. Only the futex knows the sleepers, and they are not woken for other reasons.
pub(crate) fn enter(_: impl IntoIterator<Item = Awaited>) {}
