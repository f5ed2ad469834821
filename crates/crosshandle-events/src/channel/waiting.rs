//! Waiting for a word of a channel to change.

use super::members::Peers;
use super::words::Position;
use super::{Channel, ChannelError};
use crate::platform::{Atomic, Moment, Ordering, Platform};
use std::time::Duration;

/// Longest sleep before a member checks again whether the members that it waits for are alive.
pub const LIVENESS_INTERVAL: Duration = match cfg!(fault_steps) {
    false => Duration::from_millis(40),
    true => Duration::from_secs(3),
};
/// Longest time that a member spins before it sleeps, about the cost of waking a sleeper.
const SPIN_TIME: Duration = Duration::from_micros(50);
/// Number of polls between two readings of the clock, which take about as long as a peer takes to
/// publish.
const POLLS_PER_CLOCK_READ: u32 = 64;

/// Maximum number of attempts at an operation that other members can disturb. Honest members never
/// cause so many.
pub(super) const MAX_ATTEMPTS: usize = 1_000;

/// Number of pauses that let another member change several words before the next poll.
const PAUSES: u32 = 8;

/// Pauses, so that another member can change several words before the caller polls again. Each poll
/// takes a cache line from that member.
pub(super) fn pause<P: Platform>() {
    if P::may_spin() {
        for _ in 0..PAUSES {
            P::spin_hint();
        }
    }
}

/// Spins until `is_changed` returns `true`, for a bounded time. Returns whether it did.
///
/// # Errors
/// Returns [`ChannelError::TimedOut`] if the deadline has passed before the call.
pub(super) fn spin<P: Platform>(
    is_patient: bool,
    deadline: Option<P::Instant>,
    is_changed: impl Fn() -> bool,
) -> Result<bool, ChannelError> {
    let began = P::Instant::now();
    if deadline.is_some_and(|deadline| deadline <= began) {
        return Err(ChannelError::TimedOut);
    }
    if !is_patient || !P::may_spin() {
        return Ok(is_changed());
    }
    loop {
        for _ in 0..POLLS_PER_CLOCK_READ {
            if is_changed() {
                return Ok(true);
            }
            P::spin_hint();
        }
        if P::Instant::now().saturating_duration_since(began) > SPIN_TIME {
            return Ok(false);
        }
    }
}

/// Whether a member spins before it sleeps. Spinning takes the processor from other processes, so a
/// member spins only if its last sleep was so short that spinning would have replaced it.
#[derive(Default)]
pub(super) struct Patience {
    sleeps_at_once: bool,
}

impl Patience {
    pub(super) fn spins(&self) -> bool {
        !self.sleeps_at_once
    }

    /// Records how long a sleep took.
    pub(super) fn note_sleep(&mut self, slept: Duration) {
        self.sleeps_at_once = slept > SPIN_TIME;
    }
}

/// Sleeps until the upper half of the word changes, or until the next check of liveness is due. The
/// word had the value `seen`. Bit 0 of the word says that members sleep.
///
/// # Errors
/// Returns [`ChannelError::TimedOut`] if the deadline has passed.
fn sleep<P: Platform>(
    word: &P::AtomicU64,
    seen: u64,
    deadline: Option<P::Instant>,
) -> Result<(), ChannelError> {
    let mut limit = LIVENESS_INTERVAL;
    if let Some(deadline) = deadline {
        limit = limit.min(deadline.saturating_duration_since(P::Instant::now()));
        if limit.is_zero() {
            return Err(ChannelError::TimedOut);
        }
    }
    let told = seen | Position::SLEEPERS;
    let is_told = seen == told
        || word
            .compare_exchange(seen, told, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok();
    if is_told {
        P::sleep(word, (seen >> 32) as u32, limit);
    }
    Ok(())
}

/// Wakes the sleepers of a word without changing its meaning. Another change of the word wakes them
/// too.
pub(super) fn nudge<P: Platform>(word: &P::AtomicU64) {
    let mut before = word.load(Ordering::SeqCst);
    for _ in 0..MAX_ATTEMPTS {
        let after = Position(before).after_departure().0;
        match word.compare_exchange(before, after, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => before = now,
        }
    }
    P::wake_all(word);
}

impl<P: Platform> Channel<'_, P> {
    /// Sleeps as [`sleep`] does, and returns for how long. If no member has woken the caller, ends
    /// the memberships of dead processes.
    pub(super) fn sleep(
        &self,
        word: &P::AtomicU64,
        seen: u64,
        peers: &dyn Peers,
        deadline: Option<P::Instant>,
    ) -> Result<Duration, ChannelError> {
        peers.before_sleep();
        let began = P::Instant::now();
        sleep::<P>(word, seen, deadline)?;
        let slept = P::Instant::now().saturating_duration_since(began);
        // A change of the word means that another member is alive and has woken the caller.
        if word.load(Ordering::Acquire) >> 32 == seen >> 32 {
            self.remove_dead(peers);
        }
        match peers.is_interrupted() {
            true => Err(ChannelError::Interrupted),
            false => Ok(slept),
        }
    }

    /// Wakes the sleepers of a word that had the value `before`.
    #[inline]
    pub(super) fn wake(word: &P::AtomicU64, before: u64) {
        if before & Position::SLEEPERS != 0 {
            P::wake_all(word);
        }
    }
}
