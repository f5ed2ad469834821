//! Submitting signals and completing them.

use super::slot::{
    FAILED, FailedTo, FailureReason, Issued, MAX_NUMBER, Owner, RING, RUNS, SLEEPERS, Slot,
    WATCHED, WINDOW, last_of_word, reached, sequence,
};
use super::ticket::{Ticket, tickets};
use crate::platform::{Atomic, Ordering, Platform};

/// The result of a host signal.
#[must_use = "tickets must be completed"]
#[derive(Debug)]
pub enum Signalled {
    /// This number and all earlier numbers are complete.
    Complete(u64),
    /// Earlier signals are unfinished, so the caller must complete these tickets. The last ticket
    /// has the signal's number.
    Submitted(Vec<Ticket>),
}

/// The reason why a submitter could not take a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IssueError {
    /// The owner has changed 16 times since the oldest unfinished signal.
    TooManyOwners,
    /// The event has reached the greatest number, or the requested value is beyond it.
    Exhausted,
    /// The requested value is more than 2²⁹ ahead of the oldest unfinished signal. The field is the
    /// greatest value that is possible now.
    TooFarAhead(u64),
    /// The requested value was submitted before. The field is the latest number.
    NotAhead(u64),
    /// Only device code of the event's creator signals this event.
    SingleSignaller,
}

/// The result of an attempt to complete a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// The signal is complete, and its sleepers have been woken.
    Done,
    /// An earlier signal on the same word is unfinished. The caller must retry after it has
    /// finished.
    TooEarly,
    /// A survivor has already failed the signal, because it considered the owner dead.
    Superseded,
}

impl<P: Platform> Slot<P> {
    /// Signals immediately if the fast path allows it, and returns the signal's number. If the
    /// result is `None`, the caller must call [`signal`](Self::signal).
    ///
    /// The function guesses that `latest` is still the latest number and complete. A right guess
    /// saves one read of the cache line from a peer that polls it. That read takes half the time of
    /// a signal to another CPU.
    #[inline]
    pub fn try_signal_after(&self, latest: u64) -> Option<u64> {
        let number = latest + 1;
        let expected = Issued::complete(latest);
        if !number.is_multiple_of(WINDOW) && self.advance_complete(expected, number) {
            return Some(number);
        }
        let current = self.load_issued();
        let number = current.number() + 1;
        let ordinary = current.is_complete() && !number.is_multiple_of(WINDOW);
        (ordinary && self.advance_complete(current, number)).then_some(number)
    }

    /// Signals immediately, or submits a signal if earlier signals are unfinished.
    pub fn signal(&self, owner: Owner) -> Result<Signalled, IssueError> {
        self.signal_slow(owner, None)
    }

    /// Signals all numbers up to `value` immediately, or submits them if earlier signals are
    /// unfinished.
    pub fn signal_up_to(&self, owner: Owner, value: u64) -> Result<Signalled, IssueError> {
        self.signal_slow(owner, Some(value))
    }

    #[cold]
    fn signal_slow(&self, owner: Owner, value: Option<u64>) -> Result<Signalled, IssueError> {
        self.check_signallers()?;
        loop {
            let current = self.load_issued();
            let latest = current.number();
            let number = value.unwrap_or(latest + 1);
            check_step(latest, number)?;
            // A signal becomes unfinished only if a submitter takes a number, and then advancing
            // from `current` fails.
            if current.is_complete() || self.completed() >= latest {
                if current.is_complete() && number / WINDOW != latest / WINDOW {
                    // Otherwise the words could lag so far that their lower 32 bits compare
                    // wrongly.
                    self.catch_up_all(current);
                }
                if self.advance_complete(current, number) {
                    return Ok(Signalled::Complete(number));
                }
            } else if self.take_number(current, number, owner)? {
                return Ok(Signalled::Submitted(tickets(latest, number)));
            }
        }
    }

    /// Takes all numbers up to `value` for signals that complete later.
    pub fn issue_up_to(&self, owner: Owner, value: u64) -> Result<Vec<Ticket>, IssueError> {
        self.check_signallers()?;
        self.take_up_to(owner, value)
    }

    /// Takes all numbers up to `value` for a survivor, which fails them. Does not check who may
    /// signal the event, because any process with the event open can set that flag.
    ///
    /// # Errors
    /// The errors of [`issue_up_to`](Self::issue_up_to).
    pub fn take_up_to(&self, owner: Owner, value: u64) -> Result<Vec<Ticket>, IssueError> {
        loop {
            let current = self.load_issued();
            check_step(current.number(), value)?;
            if self.take_number(current, value, owner)? {
                return Ok(tickets(current.number(), value));
            }
        }
    }

    /// Marks every signal up to `number` complete. Returns `false` if `issued` is no longer
    /// `current`.
    #[inline]
    fn advance_complete(&self, current: Issued, number: u64) -> bool {
        // This is sequentially consistent with the `fetch_or` of a sleeper. Either the sleeper sees
        // the number, or this thread sees `WATCHED`.
        let moved = self.issued.compare_exchange(
            current.0,
            Issued::complete(number).0,
            Ordering::SeqCst,
            Ordering::Relaxed,
        );
        if moved.is_err() {
            return false;
        }
        self.record_cpu();
        if current.is_watched() {
            self.wake_watchers();
        }
        true
    }

    /// Advances the words with sleepers to `issued`, and wakes the sleepers. A device leaves no
    /// trace in the word that it waits for, so all words advance if there are device waits.
    #[cold]
    fn wake_watchers(&self) {
        // The caller saw `WATCHED`. A submitter of a device wait writes this field before that bit.
        let has_device_waits = self.max_device_wait.load(Ordering::SeqCst) != 0;
        loop {
            let current = self.load_issued();
            let mut has_waiters_left =
                has_device_waits && self.max_device_wait.load(Ordering::SeqCst) > current.number();
            // The word of the latest number comes first, because devices usually wait for it.
            for step in 0..RING {
                let index = (current.number() + RING - step) % RING;
                let word = self.word(index);
                has_waiters_left |=
                    current.is_complete() && self.catch_up(index, word, current, !has_device_waits);
            }
            // While numbers are pending, their completions wake the sleepers. `WATCHED` stays set
            // for the numbers after them.
            if !has_waiters_left && current.is_complete() {
                return;
            }
            let watched = current.0 | WATCHED;
            if self
                .issued
                .compare_exchange(current.0, watched, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
            {
                return;
            }
        }
    }

    /// Advances a word to `issued`, up to which all signals are complete, and wakes its sleepers.
    /// With `slept_on_only`, a word without sleepers stays as it is. Returns whether sleepers are
    /// left.
    pub(super) fn catch_up(
        &self,
        index: u64,
        word: &P::AtomicU64,
        issued: Issued,
        slept_on_only: bool,
    ) -> bool {
        let last = last_of_word(index, issued.number()) as u32;
        let mut current = word.load(Ordering::SeqCst);
        loop {
            let sleepers = current & SLEEPERS != 0;
            if sequence(current).wrapping_sub(last) as i32 >= 0 {
                return sleepers;
            }
            if slept_on_only && !sleepers {
                return false;
            }
            let next = u64::from(last) << 32;
            match word.compare_exchange(current, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(old) => {
                    Self::wake_sleepers(word, old);
                    return false;
                }
                Err(seen) => current = seen,
            }
        }
    }

    fn catch_up_all(&self, issued: Issued) {
        for (index, word) in self.words.iter().enumerate() {
            self.catch_up(index as u64, word, issued, false);
        }
    }

    /// Takes the next number for a signal of `owner` that completes later.
    #[inline]
    pub fn issue(&self, owner: Owner) -> Result<Ticket, IssueError> {
        let current = self.load_issued();
        let latest = current.number();
        // Usually the latest number belongs to this owner too, and is pending.
        let is_ordinary = current.0 & !WATCHED == Issued::pending(latest, owner).0;
        if is_ordinary && latest < WINDOW && self.advance_pending(current, latest + 1, owner) {
            return Ok(Ticket::single(latest + 1));
        }
        self.issue_slow(owner)
    }

    #[cold]
    fn issue_slow(&self, owner: Owner) -> Result<Ticket, IssueError> {
        self.check_signallers()?;
        loop {
            let current = self.load_issued();
            let number = current.number() + 1;
            if number > MAX_NUMBER {
                return Err(IssueError::Exhausted);
            }
            if self.take_number(current, number, owner)? {
                return Ok(Ticket::single(number));
            }
        }
    }

    /// Takes all numbers up to `number` for `owner`, after it has updated the words, `finished` and
    /// `runs`. Returns `false` if `issued` is no longer `current`.
    pub(super) fn take_number(
        &self,
        current: Issued,
        number: u64,
        owner: Owner,
    ) -> Result<bool, IssueError> {
        if current.is_complete() {
            self.catch_up_all(current);
            self.record_finished_up_to(current.number());
        } else {
            // Most events never reach such numbers.
            if number > WINDOW {
                let limit = self.completed() + WINDOW;
                if number > limit {
                    return Err(IssueError::TooFarAhead(limit));
                }
            }
            if current.owner() != owner.get() {
                self.close_run(current)?;
            }
        }
        Ok(self.advance_pending(current, number, owner))
    }

    /// Advances `issued` to `number`, pending. Returns `false` if `issued` is no longer `current`.
    #[inline]
    fn advance_pending(&self, current: Issued, number: u64, owner: Owner) -> bool {
        let next = Issued::pending(number, owner).0 | current.0 & WATCHED;
        self.issued
            .compare_exchange(current.0, next, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Records that `latest` ends its owner's run. Must be called before another owner takes the
    /// next number.
    #[cold]
    fn close_run(&self, latest: Issued) -> Result<(), IssueError> {
        let completed = self.completed();
        for offset in 0..RUNS as u64 {
            let record = &self.runs[((latest.number() + offset) % RUNS as u64) as usize];
            let mut old = record.load(Ordering::Acquire);
            loop {
                let recorded = Issued(old).number();
                // A greater number means that `latest` is outdated, and then taking a number will
                // fail.
                if recorded >= latest.number() {
                    return Ok(());
                }
                if recorded > completed {
                    break;
                }
                // The exchange may fail because a slow submitter recorded an earlier number.
                match record.compare_exchange(old, latest.0, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return Ok(()),
                    Err(seen) => old = seen,
                }
            }
        }
        // An outdated `latest` is not an error here, because taking a number will fail.
        if self.load_issued() != latest {
            return Ok(());
        }
        Err(IssueError::TooManyOwners)
    }

    /// Completes a signal and wakes its waiters.
    pub fn complete(&self, ticket: Ticket) -> Completion {
        self.finish(ticket, 0)
    }

    /// Completes a signal as failed and wakes its waiters.
    pub fn fail(&self, ticket: Ticket, reason: FailureReason) -> Completion {
        let word = self.word(ticket.number).load(Ordering::Acquire);
        if sequence(word) != ticket.previous {
            // The signal's turn may come at any moment, but nothing has been recorded yet.
            return out_of_turn(word, ticket);
        }
        self.record_failure(ticket.first(), ticket.number, reason);
        self.finish(ticket, FAILED)
    }

    fn finish(&self, ticket: Ticket, failed: u64) -> Completion {
        let word = self.word(ticket.number);
        let done = u64::from(ticket.number as u32) << 32 | failed;
        let mut current = word.load(Ordering::Acquire);
        loop {
            if sequence(current) != ticket.previous {
                return out_of_turn(current, ticket);
            }
            match word.compare_exchange_weak(current, done, Ordering::AcqRel, Ordering::Acquire) {
                Ok(old) => {
                    self.record_cpu();
                    Self::wake_sleepers(word, old);
                    self.record_finished(ticket.number);
                    return Completion::Done;
                }
                Err(seen) => current = seen,
            }
        }
    }

    /// Records the failure of the signals `first..=last` of one word. Must be called before the
    /// word's `FAILED` bit is set.
    pub(super) fn record_failure(&self, first: u64, last: u64, reason: FailureReason) {
        let index = (last % RING) as usize;
        let (from, to) = (&self.failed_from[index], &self.failed_to[index]);
        let recorded = FailedTo(to.load(Ordering::Acquire)).last();
        // Consecutive failures form one range, so that none of them is forgotten.
        if recorded == 0 || recorded + RING < first {
            // The start is written first, and readers read the end first. They therefore never see
            // too wide a range, which would turn the successes between two failures into failures.
            from.fetch_max(first, Ordering::AcqRel);
        }
        to.fetch_max(FailedTo::new(last, reason).0, Ordering::AcqRel);
    }

    /// Records the CPU of the signaller. Waiters spin only if it is not their own CPU.
    #[inline]
    fn record_cpu(&self) {
        let cpu = P::current_cpu().wrapping_add(1);
        if self.signaller_cpu.load(Ordering::Relaxed) != cpu {
            self.signaller_cpu.store(cpu, Ordering::Relaxed);
        }
    }

    /// Wakes the waiters that slept on `word` while its value was `old`.
    #[inline]
    pub(super) fn wake_sleepers(word: &P::AtomicU64, old: u64) {
        if old & SLEEPERS != 0 {
            P::wake_all(word);
        }
    }
}

/// Checks that `issued` may advance from `latest` to `number` in one step.
#[inline]
fn check_step(latest: u64, number: u64) -> Result<(), IssueError> {
    if number <= latest {
        return Err(IssueError::NotAhead(latest));
    }
    if number > MAX_NUMBER {
        return Err(IssueError::Exhausted);
    }
    if number - latest > WINDOW {
        return Err(IssueError::TooFarAhead(latest + WINDOW));
    }
    Ok(())
}

/// Returns the reason why a signal cannot complete on `word`, which is not at `ticket.previous`.
#[inline]
fn out_of_turn(word: u64, ticket: Ticket) -> Completion {
    if reached(sequence(word), ticket.number) {
        Completion::Superseded
    } else {
        Completion::TooEarly
    }
}
