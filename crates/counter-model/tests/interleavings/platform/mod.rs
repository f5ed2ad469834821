//! The platform on which the protocol runs under shuttle's control.
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

use crosshandle_events::{Awaited, Platform};
use std::time::Duration;

/// The machine that the scheduler controls.
#[derive(Clone, Copy)]
pub(crate) enum Shuttle {}

impl Platform for Shuttle {
    type AtomicU32 = AtomicU32;
    type AtomicU64 = AtomicU64;
    type Instant = Instant;
    type Entry = ();

    /// Returns the choice of the test program.
    fn may_spin() -> bool {
        crate::MAY_SPIN
    }

    /// Lets another process run, and advances the clock.
    fn spin_hint() {
        clock::pass(clock::SPIN_ROUND);
        shuttle::thread::yield_now();
    }

    /// Returns one of two CPUs at random, because a process may migrate between any two calls.
    fn current_cpu() -> u32 {
        pick(2) as u32
    }

    fn sleep(word: &AtomicU64, expected: u32, limit: Duration) {
        sleep(word, expected, limit);
    }

    fn sleep_any(words: &[(&AtomicU64, u32)], limit: Duration) {
        sleep_any(words, limit);
    }

    fn wake_all(word: &AtomicU64) {
        wake_all(word);
    }

    /// Does nothing. Only the futex knows the sleepers, and they are not woken for other reasons.
    fn enter(_: impl IntoIterator<Item = Awaited>) {}
}
