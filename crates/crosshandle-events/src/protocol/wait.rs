//! Waiting for signals: a waiter polls, spins for a while, and then sleeps.

use super::backoff::WaitBackoff;
use super::recovery::Liveness;
use super::slot::{
    FAILED, FailedTo, FailureReason, Issued, RING, SLEEPERS, Slot, WATCHED, WINDOW, reached,
    sequence,
};
use crate::platform::{self, Atomic, Moment, Ordering, Platform};
use std::ptr;
use std::time::Duration;

/// Longest time that a waiter spins before it sleeps, if hosts signal the event. It is about the
/// cost of waking a sleeper. A shorter time causes more wake-ups, and a longer time wastes more of
/// a core.
const SPIN_TIME: Duration = Duration::from_micros(50);

/// Longest time that a waiter spins before it sleeps, if devices signal the event. It is about the
/// duration of the shortest sleep, because a device wakes no sleeper.
const SPIN_TIME_FOR_DEVICE: Duration = Duration::from_micros(100);

/// Maximum number of times that a waiter yields to a signaller on its own CPU before it sleeps. A
/// signaller that replies at once needs one yield. Each yield without a reply delays the sleep by a
/// fraction of a microsecond.
const YIELDS: u32 = 2;

/// Number of polls of a word between two readings of the clock. Reading the clock takes about as
/// long as a peer takes to reply. Frequent readings delay the waiter, and rare readings prolong the
/// spin.
const POLLS_PER_CLOCK_READ: u32 = 64;

/// The state of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The signal is not submitted or not finished.
    Pending,
    /// The signal finished without an error.
    Complete,
    /// The signal finished with an error.
    Failed(FailureReason),
}

/// The reason why a wait ended without success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitError {
    /// The deadline passed.
    TimedOut,
    /// The signal completed with an error.
    Failed(FailureReason),
    /// The signal was never submitted, and the processes that could have submitted it have ended.
    Abandoned,
}

/// The way in which a waiter waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitMode {
    /// The waiter first spins if the signaller runs on another CPU, and then sleeps.
    Spin,
    /// The waiter sleeps without spinning first.
    LowPower,
}

impl WaitMode {
    /// Returns the mode for a wait for several events, which is low power if one of them asks for
    /// it.
    #[inline]
    pub fn for_all(modes: impl IntoIterator<Item = Self>) -> Self {
        if modes.into_iter().any(|mode| mode == Self::LowPower) {
            Self::LowPower
        } else {
            Self::Spin
        }
    }
}

/// A signal that a waiter waits for.
#[derive(Clone, Copy)]
pub struct Target<'a, P: Platform> {
    pub slot: &'a Slot<P>,
    pub number: u64,
    pub liveness: &'a dyn Liveness,
}

/// A sleep of a thread that reports show until this value is dropped.
struct ToldSleep<'a> {
    liveness: &'a dyn Liveness,
    place: usize,
}

impl<'a> ToldSleep<'a> {
    fn begin<P: Platform>(target: &Target<'a, P>) -> Option<Self> {
        let liveness = target.liveness;
        let place = liveness.begin_sleep(target.number)?;
        Some(Self { liveness, place })
    }
}

impl Drop for ToldSleep<'_> {
    fn drop(&mut self) {
        self.liveness.end_sleep(self.place);
    }
}

/// A word that ends a [`wait_any`] when its upper half is no longer `expected`.
pub struct Interrupt<'a, P: Platform> {
    pub word: &'a P::AtomicU64,
    pub expected: u32,
}

impl<P: Platform> Slot<P> {
    /// Returns the number that a wait without a number waits for. That is the latest number, or the
    /// first one if no signal was submitted. Returns `None` if signals were submitted and
    /// `COMPLETE` says that all are complete.
    #[inline]
    pub fn awaited(&self) -> Option<u64> {
        let issued = self.load_issued();
        let number = issued.number();
        (!issued.is_complete() || number == 0).then(|| number.max(1))
    }

    /// Returns the number of the latest signal. Returns `None` if no signal was submitted, or if
    /// `COMPLETE` says that all are complete.
    #[inline]
    pub fn unfinished(&self) -> Option<u64> {
        let issued = self.load_issued();
        (!issued.is_complete()).then(|| issued.number())
    }

    /// Returns the number that a wait [targets by default](Self::awaited), or `None` if that signal
    /// has completed without an error.
    #[inline]
    pub fn latest_pending(&self) -> Option<u64> {
        let number = self.awaited()?;
        (self.outcome_by_word(number) != Outcome::Complete).then_some(number)
    }

    /// Returns the number of the latest signal. Returns `None` if no signal was submitted, or if
    /// the latest has completed without an error.
    #[inline]
    pub fn submitted_pending(&self) -> Option<u64> {
        let number = self.unfinished()?;
        (self.outcome_by_word(number) != Outcome::Complete).then_some(number)
    }

    /// Returns the state of any signal, even if it is not yet submitted.
    #[inline]
    pub fn outcome(&self, number: u64) -> Outcome {
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

    /// Returns the state of a submitted signal that is at most `WINDOW` behind the latest signal.
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

    /// Returns the state of a signal that is known to have finished.
    fn outcome_of_past(&self, number: u64) -> Outcome {
        let index = (number % RING) as usize;
        let to = self.failed_to[index].load(Ordering::Acquire);
        let from = self.failed_from[index].load(Ordering::Acquire);
        let to = FailedTo(to);
        if from != 0 && from <= number && number <= to.last() {
            return Outcome::Failed(to.reason());
        }
        Outcome::Complete
    }

    /// Waits for signal `number`, which may not be submitted yet.
    pub fn wait(
        &self,
        number: u64,
        mode: WaitMode,
        deadline: Option<P::Instant>,
        liveness: &dyn Liveness,
    ) -> Result<(), WaitError> {
        let target = Target {
            slot: self,
            number,
            liveness,
        };
        if let Some(result) = target.result_so_far() {
            return result;
        }
        if mode == WaitMode::Spin
            && let Some(result) = target
                .spin(deadline)
                .or_else(|| target.yield_to_signaller())
        {
            return result;
        }
        let mut backoff = WaitBackoff::<P>::until(deadline);
        let mut entry = None;
        loop {
            let in_steps = self.is_device_signalled();
            let Some(sleep) = backoff.next(in_steps, liveness.is_known_orphan()) else {
                return Err(match target.never_comes() {
                    true => WaitError::Abandoned,
                    false => WaitError::TimedOut,
                });
            };
            target.watch_owner();
            // The entry comes before the last look, so that a process that reports something finds
            // the sleeper.
            entry.get_or_insert_with(|| {
                let told = ToldSleep::begin(&target);
                (P::enter([target.awaited()]), told)
            });
            if let Some(before) = target.register() {
                if !target.never_comes() && self.is_device_signalled() == in_steps {
                    P::sleep(target.word(), before, sleep.limit);
                }
                target.deregister(before);
            }
            // The check runs even if the word has changed, because a hostile peer may change the
            // word all the time.
            target.check_liveness_if(sleep.is_check_due)?;
            if let Some(result) = target.result_so_far() {
                return result;
            }
        }
    }

    /// Returns whether the latest host signaller ran on another CPU than the caller.
    fn is_signaller_elsewhere(&self) -> bool {
        let cpu = P::current_cpu().wrapping_add(1);
        self.signaller_cpu.load(Ordering::Relaxed) != cpu
    }
}

impl<P: Platform> Target<'_, P> {
    pub(super) fn word(&self) -> &P::AtomicU64 {
        self.slot.word(self.number)
    }

    /// Returns the address of the word that changes when the signal completes.
    pub(super) fn word_address(&self) -> usize {
        ptr::from_ref(self.word()).addr()
    }

    /// Returns the result of the wait, or an error if the signal never comes. Returns `None` while
    /// the signal is unfinished. With `is_check_due`, it first fails the signals that a dead
    /// process left on the word.
    pub(super) fn look(&self, is_check_due: bool) -> Option<Result<(), WaitError>> {
        if let Some(result) = self.result_so_far() {
            return Some(result);
        }
        match self.check_liveness_if(is_check_due) {
            Ok(()) => self.result_so_far(),
            Err(error) => Some(Err(error)),
        }
    }

    /// Returns the result of the wait, or `None` while the signal is unfinished.
    #[inline]
    fn result_so_far(&self) -> Option<Result<(), WaitError>> {
        match self.slot.outcome(self.number) {
            Outcome::Pending => None,
            Outcome::Complete => Some(Ok(())),
            Outcome::Failed(reason) => Some(Err(WaitError::Failed(reason))),
        }
    }

    /// Polls until the spin time is over, or until the signaller runs on the caller's CPU.
    fn spin(&self, deadline: Option<P::Instant>) -> Option<Result<(), WaitError>> {
        if !P::may_spin() || !self.slot.is_signaller_elsewhere() {
            return None;
        }
        let mut end = None;
        loop {
            if let Some(result) = self.poll() {
                return Some(result);
            }
            // The clock is read after the first polls, because reading it takes about as long as a
            // peer takes to reply.
            let now = P::Instant::now();
            let end = *end.get_or_insert_with(|| {
                let end = now
                    + match self.slot.is_device_signalled() {
                        true => SPIN_TIME_FOR_DEVICE,
                        false => SPIN_TIME,
                    };
                deadline.map_or(end, |deadline| deadline.min(end))
            });
            if now >= end || !self.slot.is_signaller_elsewhere() {
                return None;
            }
        }
    }

    /// Lets the signaller run if it runs on the caller's CPU. If it signals before it sleeps, both
    /// threads save a sleep, a timer and a wake-up.
    fn yield_to_signaller(&self) -> Option<Result<(), WaitError>> {
        for _ in 0..YIELDS {
            if self.slot.is_signaller_elsewhere() || !P::yield_cpu() {
                return None;
            }
            if let Some(result) = self.result_so_far() {
                P::yielded(true);
                return Some(result);
            }
        }
        P::yielded(false);
        None
    }

    /// Polls once, or a few times if the signaller runs on another CPU.
    pub fn look_if_worthwhile(&self) -> Option<Result<(), WaitError>> {
        if !P::may_spin() || !self.slot.is_signaller_elsewhere() {
            return self.result_so_far();
        }
        self.poll()
    }

    /// Polls the word a few times.
    fn poll(&self) -> Option<Result<(), WaitError>> {
        for _ in 0..POLLS_PER_CLOCK_READ {
            if let Some(result) = self.result_so_far() {
                return Some(result);
            }
            P::spin_hint();
        }
        None
    }

    /// Adds the caller to the word's sleepers, and returns the sequence to sleep on. Returns `None`
    /// if the word has changed, and then the caller must poll again.
    pub(super) fn register(&self) -> Option<u32> {
        let word = self.word();
        let before = word.load(Ordering::Acquire);
        // Only a hostile peer reaches this count. Sleeps are short, so an uncounted sleep is safe.
        if before & SLEEPERS != SLEEPERS {
            word.compare_exchange(before, before + 1, Ordering::SeqCst, Ordering::Relaxed)
                .ok()?;
        }
        let sequence = sequence(before);
        // An immediate signaller reads the words only if `WATCHED` announces a sleeper. The count
        // is written first, so a signaller that sees the bit also sees the count.
        let issued = self.slot.issued.load(Ordering::SeqCst);
        let untaken = self.number > Issued(issued).number();
        if untaken && !Issued(issued).is_watched() {
            self.slot.issued.fetch_or(WATCHED, Ordering::SeqCst);
        }
        if self.result_so_far().is_some() {
            self.deregister(sequence);
            return None;
        }
        Some(sequence)
    }

    /// Returns whether the process that finishes the signal will find the sleeper. `before` is the
    /// word's sequence at registration. The result is false if an immediate signaller was killed
    /// before it set `WATCHED` again.
    pub(super) fn is_registered(&self, before: u32) -> bool {
        let word = self.word().load(Ordering::SeqCst);
        if sequence(word) != before || word & SLEEPERS == 0 {
            return false;
        }
        let issued = Issued(self.slot.issued.load(Ordering::SeqCst));
        let untaken = self.number > issued.number();
        // A process that has taken the number since may have completed it without looking at the
        // word.
        (!untaken || issued.is_watched()) && self.result_so_far().is_none()
    }

    /// Removes the caller from the count of sleepers, unless a completion has already reset the
    /// count.
    pub(super) fn deregister(&self, before: u32) {
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

    /// Returns the description of the wait that this process's reports show.
    fn awaited(&self) -> platform::Awaited {
        platform::Awaited {
            word: self.word_address(),
            slot: ptr::from_ref(self.slot).addr(),
            number: self.number,
        }
    }

    /// Returns whether a submitter has taken the number.
    pub(super) fn is_taken(&self) -> bool {
        self.number <= self.slot.issued()
    }

    /// Requests that the process that took the number is watched.
    pub(super) fn watch_owner(&self) {
        self.liveness.watch(&|| self.slot.owner_of(self.number));
    }

    /// Returns whether the number is not taken, and is known to be abandoned.
    pub(super) fn never_comes(&self) -> bool {
        self.liveness.is_known_abandoned() && self.number > self.slot.issued()
    }

    /// Calls [`check_liveness`](Self::check_liveness) if a check is due, or if the number never
    /// comes.
    fn check_liveness_if(&self, is_due: bool) -> Result<(), WaitError> {
        match (is_due || self.never_comes()) && self.result_so_far().is_none() {
            true => self.check_liveness(),
            false => Ok(()),
        }
    }

    /// Fails the signals that a dead process left on this word. Returns an error if the number was
    /// never taken and is abandoned.
    fn check_liveness(&self) -> Result<(), WaitError> {
        if self.number <= self.slot.issued() {
            self.slot.fail_orphans_on(self.number % RING, self.liveness);
            return Ok(());
        }
        // The number is read again, because a process may have submitted the signal and then ended.
        if self.liveness.is_abandoned() && self.number > self.slot.issued() {
            return Err(WaitError::Abandoned);
        }
        Ok(())
    }
}

/// Waits until one of `targets` has finished, and returns its index and result. Returns `None` if
/// interrupted. After the deadline, returns index 0 and [`WaitError::TimedOut`].
pub fn wait_any<P: Platform>(
    targets: &[Target<'_, P>],
    interrupt: Option<Interrupt<'_, P>>,
    mode: WaitMode,
    deadline: Option<P::Instant>,
) -> Option<(usize, Result<(), WaitError>)> {
    let elsewhere = |target: &Target<'_, P>| target.slot.is_signaller_elsewhere();
    let may_spin = mode == WaitMode::Spin && P::may_spin() && targets.iter().all(elsewhere);
    let mut spin_end = may_spin.then(|| P::Instant::now() + SPIN_TIME);
    let mut words = Vec::with_capacity(targets.len() + 1);
    let device = |target: &Target<'_, P>| target.slot.is_device_signalled();
    let orphaned = |target: &Target<'_, P>| target.liveness.is_known_orphan();
    let mut backoff = WaitBackoff::<P>::until(deadline);
    let mut entry = None;
    loop {
        for (index, target) in targets.iter().enumerate() {
            if let Some(result) = target.result_so_far() {
                return Some((index, result));
            }
        }
        if interrupt.as_ref().is_some_and(Interrupt::is_raised) {
            return None;
        }
        let in_steps = targets.iter().any(device);
        let is_orphaned = targets.iter().any(orphaned);
        let Some(sleep) = backoff.next(in_steps, is_orphaned) else {
            return Some(match targets.iter().position(Target::never_comes) {
                Some(index) => (index, Err(WaitError::Abandoned)),
                None => (0, Err(WaitError::TimedOut)),
            });
        };
        if let Some(end) = spin_end {
            P::spin_hint();
            spin_end = (P::Instant::now() < end).then_some(end);
            continue;
        }
        targets.iter().for_each(Target::watch_owner);
        entry.get_or_insert_with(|| {
            let told: Vec<_> = targets.iter().filter_map(ToldSleep::begin).collect();
            (P::enter(targets.iter().map(Target::awaited)), told)
        });
        words.clear();
        words.extend(
            targets
                .iter()
                .map_while(|target| Some((target.word(), target.register()?))),
        );
        let registered = words.len();
        let may_sleep = registered == targets.len() && !targets.iter().any(Target::never_comes);
        if may_sleep && targets.iter().any(device) == in_steps {
            words.extend(
                interrupt
                    .as_ref()
                    .map(|interrupt| (interrupt.word, interrupt.expected)),
            );
            P::sleep_any(&words, sleep.limit);
        }
        for (target, (_, before)) in targets.iter().zip(&words[..registered]) {
            target.deregister(*before);
        }
        for (index, target) in targets.iter().enumerate() {
            if let Err(error) = target.check_liveness_if(sleep.is_check_due) {
                return Some((index, Err(error)));
            }
        }
    }
}

impl<P: Platform> Interrupt<'_, P> {
    fn is_raised(&self) -> bool {
        sequence(self.word.load(Ordering::Acquire)) != self.expected
    }
}
