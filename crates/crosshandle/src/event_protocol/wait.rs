//! Waiting for signals: look, spin a little, sleep.

use super::nap::Naps;
use super::recovery::Liveness;
use super::slot::{
    FAILED, FailureReason, Issued, RING, SLEEPERS, Slot, WATCHED, WINDOW, reached, sequence,
};
use crate::platform;
use crate::platform::{AtomicU64, Instant, Ordering};
use std::time::Duration;

/// How long a waiter spins before it sleeps: about what waking a sleeper costs.
const SPIN: Duration = Duration::from_micros(50);
/// The same if a device signals, which wakes nobody: about what the shortest sleep takes.
const SPIN_FOR_DEVICE: Duration = Duration::from_micros(100);
/// Looks between two readings of the clock.
const LOOKS: u32 = 64;

/// Where a signal stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Not submitted yet, or not finished.
    Pending,
    /// Finished.
    Complete,
    /// Finished, with an error.
    Failed(FailureReason),
}

/// Why a wait ended without its signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitError {
    /// The deadline passed.
    TimedOut,
    /// The signal completed with an error.
    Failed(FailureReason),
    /// The signal was never submitted, and the event's exporter is gone.
    Abandoned,
}

/// How a waiter passes the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitMode {
    /// Spin first if the signaller runs on another CPU, then sleep.
    Spin,
    /// Sleep at once.
    LowPower,
}

impl WaitMode {
    /// How to wait for several events: with low power if one of them asks for that.
    pub(crate) fn for_all(modes: impl IntoIterator<Item = Self>) -> Self {
        if modes.into_iter().any(|mode| mode == Self::LowPower) {
            Self::LowPower
        } else {
            Self::Spin
        }
    }
}

/// One signal that a wait is about.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) slot: &'a Slot,
    pub(crate) number: u64,
    pub(crate) liveness: &'a dyn Liveness,
}

/// A word that ends a [`wait_any`] when it is no longer `expected` (its upper half counts).
#[derive(Clone, Copy)]
pub(crate) struct Interrupt<'a> {
    pub(crate) word: &'a AtomicU64,
    pub(crate) expected: u32,
}

impl Slot {
    /// The number of the latest signal, unless it and all before it are complete.
    #[inline]
    pub(crate) fn unfinished(&self) -> Option<u64> {
        let issued = self.load_issued();
        (!issued.is_complete()).then(|| issued.number())
    }

    /// The number of the latest signal, unless it has completed without an error.
    #[inline]
    pub(crate) fn latest_pending(&self) -> Option<u64> {
        let number = self.unfinished()?;
        (self.outcome_by_word(number) != Outcome::Complete).then_some(number)
    }

    /// Where signal `number` stands, be it in the past or in the future.
    #[inline]
    pub(crate) fn outcome(&self, number: u64) -> Outcome {
        let issued = self.load_issued();
        if number > issued.number() {
            return Outcome::Pending;
        }
        if issued.is_complete() {
            if number == issued.number() {
                return Outcome::Complete;
            }
            return self.outcome_of_past(number);
        }
        if issued.number() - number > WINDOW {
            return self.outcome_of_past(number);
        }
        self.outcome_by_word(number)
    }

    /// Where a signal stands that was submitted not long ago.
    #[inline]
    fn outcome_by_word(&self, number: u64) -> Outcome {
        let word = self.word(number).load(Ordering::Acquire);
        if sequence(word) == number as u32 && word & FAILED == 0 {
            return Outcome::Complete;
        }
        if !reached(sequence(word), number) {
            return Outcome::Pending;
        }
        self.outcome_of_past(number)
    }

    /// How a finished signal ended.
    fn outcome_of_past(&self, number: u64) -> Outcome {
        let index = (number % RING) as usize;
        let to = self.failed_to[index].load(Ordering::Acquire);
        let from = self.failed_from[index].load(Ordering::Acquire);
        if from != 0 && from <= number && number <= to >> FailureReason::BITS {
            return Outcome::Failed(FailureReason::from_bits(to));
        }
        Outcome::Complete
    }

    /// Waits for signal `number`, submitted or not.
    pub(crate) fn wait(
        &self,
        number: u64,
        mode: WaitMode,
        deadline: Option<Instant>,
        liveness: &dyn Liveness,
    ) -> Result<(), WaitError> {
        let target = Target {
            slot: self,
            number,
            liveness,
        };
        if let Some(result) = target.settled() {
            return result;
        }
        if mode == WaitMode::Spin
            && let Some(result) = target.spin(deadline)
        {
            return result;
        }
        let mut naps = Naps::until(deadline);
        loop {
            let in_steps = self.is_device_signalled();
            let Some(nap) = naps.next(in_steps) else {
                return Err(WaitError::TimedOut);
            };
            if let Some(before) = target.register() {
                // A notice that came before there was a sleeper woke nobody.
                let never_comes = liveness.is_known_abandoned() && number > self.issued();
                if !never_comes && self.is_device_signalled() == in_steps {
                    platform::sleep(target.word(), before, nap.limit);
                }
                target.deregister(before);
                if (nap.is_check_due || never_comes) && target.settled().is_none() {
                    target.check_liveness()?;
                }
            }
            if let Some(result) = target.settled() {
                return result;
            }
        }
    }

    fn signaller_is_elsewhere(&self) -> bool {
        let cpu = platform::current_cpu().wrapping_add(1);
        self.signaller_cpu.load(Ordering::Relaxed) != cpu
    }
}

impl Target<'_> {
    fn word(&self) -> &AtomicU64 {
        self.slot.word(self.number)
    }

    /// The end of the wait, if it has come.
    #[inline]
    fn settled(&self) -> Option<Result<(), WaitError>> {
        match self.slot.outcome(self.number) {
            Outcome::Pending => None,
            Outcome::Complete => Some(Ok(())),
            Outcome::Failed(reason) => Some(Err(WaitError::Failed(reason))),
        }
    }

    /// Looks for a while, as long as the signaller runs on another CPU.
    fn spin(&self, deadline: Option<Instant>) -> Option<Result<(), WaitError>> {
        if !platform::MAY_SPIN || !self.slot.signaller_is_elsewhere() {
            return None;
        }
        let mut end = None;
        loop {
            if let Some(result) = self.look() {
                return Some(result);
            }
            // Reading the clock takes as long as a peer takes to answer, so only now.
            let now = Instant::now();
            let end = *end.get_or_insert_with(|| {
                let end = now
                    + match self.slot.is_device_signalled() {
                        true => SPIN_FOR_DEVICE,
                        false => SPIN,
                    };
                deadline.map_or(end, |deadline| deadline.min(end))
            });
            if now >= end || !self.slot.signaller_is_elsewhere() {
                return None;
            }
        }
    }

    /// Looks a few times, if the signaller runs on another CPU.
    pub(crate) fn look_if_worthwhile(&self) -> Option<Result<(), WaitError>> {
        if !platform::MAY_SPIN || !self.slot.signaller_is_elsewhere() {
            return self.settled();
        }
        self.look()
    }

    /// Looks a few times.
    fn look(&self) -> Option<Result<(), WaitError>> {
        for _ in 0..LOOKS {
            if let Some(result) = self.settled() {
                return Some(result);
            }
            platform::spin_hint();
        }
        None
    }

    /// Counts the caller among the sleepers of its word, and returns the sequence to sleep on.
    /// `None`: there was a change, look again.
    fn register(&self) -> Option<u32> {
        let word = self.word();
        let before = word.load(Ordering::Acquire);
        // Only a hostile peer counts so far. Naps are short, so sleeping uncounted is safe.
        if before & SLEEPERS != SLEEPERS {
            word.compare_exchange(before, before + 1, Ordering::SeqCst, Ordering::Relaxed)
                .ok()?;
        }
        let sequence = sequence(before);
        // A signal that completes at once looks at the words only if it knows of a sleeper.
        // Counted first, so that whoever sees the mark finds the count.
        let issued = self.slot.issued.load(Ordering::SeqCst);
        let untaken = self.number > Issued(issued).number();
        if untaken && !Issued(issued).is_watched() {
            self.slot.issued.fetch_or(WATCHED, Ordering::SeqCst);
        }
        if self.settled().is_some() {
            self.deregister(sequence);
            return None;
        }
        Some(sequence)
    }

    /// Takes the caller out again, unless a completion has already taken out everybody.
    fn deregister(&self, before: u32) {
        let word = self.word();
        let mut current = word.load(Ordering::Acquire);
        while sequence(current) == before && current & SLEEPERS != 0 {
            match word.compare_exchange_weak(
                current,
                current - 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return,
                Err(seen) => current = seen,
            }
        }
    }

    /// Completes what a dead process left on this word; says so if nobody will ever signal.
    fn check_liveness(&self) -> Result<(), WaitError> {
        if self.number <= self.slot.issued() {
            self.slot.fail_orphans_on(self.number % RING, self.liveness);
            return Ok(());
        }
        // Looked at again afterwards: the exporter may have submitted it and then ended.
        if self.liveness.is_abandoned() && self.number > self.slot.issued() {
            return Err(WaitError::Abandoned);
        }
        Ok(())
    }
}

/// Waits until one of `targets` is settled, and says which and how; `None` if interrupted.
/// With a deadline passed, [`WaitError::TimedOut`] comes with index 0.
pub(crate) fn wait_any(
    targets: &[Target<'_>],
    interrupt: Option<Interrupt<'_>>,
    mode: WaitMode,
    deadline: Option<Instant>,
) -> Option<(usize, Result<(), WaitError>)> {
    let elsewhere = |target: &Target<'_>| target.slot.signaller_is_elsewhere();
    let may_spin = mode == WaitMode::Spin && platform::MAY_SPIN && targets.iter().all(elsewhere);
    let mut spin_end = may_spin.then(|| Instant::now() + SPIN);
    let mut words = Vec::with_capacity(targets.len() + 1);
    let device = |target: &Target<'_>| target.slot.is_device_signalled();
    let mut naps = Naps::until(deadline);
    loop {
        for (index, target) in targets.iter().enumerate() {
            if let Some(result) = target.settled() {
                return Some((index, result));
            }
        }
        if interrupt.is_some_and(Interrupt::has_come) {
            return None;
        }
        let in_steps = targets.iter().any(device);
        let Some(nap) = naps.next(in_steps) else {
            return Some((0, Err(WaitError::TimedOut)));
        };
        if let Some(end) = spin_end {
            platform::spin_hint();
            spin_end = (Instant::now() < end).then_some(end);
            continue;
        }
        words.clear();
        words.extend(
            targets
                .iter()
                .map_while(|target| Some((target.word(), target.register()?))),
        );
        let registered = words.len();
        if registered == targets.len() && targets.iter().any(device) == in_steps {
            words.extend(interrupt.map(|interrupt| (interrupt.word, interrupt.expected)));
            platform::sleep_any(&words, nap.limit);
        }
        for (target, (_, before)) in targets.iter().zip(&words[..registered]) {
            target.deregister(*before);
        }
        for (index, target) in targets.iter().enumerate() {
            if nap.is_check_due
                && target.settled().is_none()
                && let Err(error) = target.check_liveness()
            {
                return Some((index, Err(error)));
            }
        }
    }
}

impl Interrupt<'_> {
    fn has_come(self) -> bool {
        sequence(self.word.load(Ordering::Acquire)) != self.expected
    }
}
