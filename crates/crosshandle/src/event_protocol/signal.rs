//! Submitting signals and completing them.

use super::slot::{
    FAILED, FailureReason, Issued, MAX_NUMBER, Owner, RING, RUNS, SLEEPERS, Slot, WATCHED, WINDOW,
    last_of_word, reached, sequence,
};
use super::ticket::{Ticket, tickets};
use crate::platform;
use crate::platform::{AtomicU64, Ordering};

/// What a host signal came to.
#[must_use = "tickets must be completed"]
#[derive(Debug)]
pub(crate) enum Signalled {
    /// This number and all before it are complete.
    Complete(u64),
    /// Earlier signals are unfinished; complete these tickets. The last one's number counts.
    Submitted(Vec<Ticket>),
}

/// Why no number could be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IssueError {
    /// The owner changed 16 times while signals before that are unfinished.
    TooManyOwners,
    /// The event has counted to its end, or the value asked for lies beyond it.
    Exhausted,
    /// The value asked for is more than 2²⁹ ahead of what is unfinished; the number is the
    /// greatest one possible now.
    TooFarAhead(u64),
    /// The value asked for has been submitted already; the number is the latest one.
    NotAhead(u64),
}

/// What became of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Completion {
    /// The signal is complete, and its waiters are awake.
    Done,
    /// An earlier signal on the same word is unfinished: try again once it is done.
    TooEarly,
    /// A survivor has already failed the signal, taking its owner for dead.
    Superseded,
}

impl Slot {
    /// As [`signal`](Self::signal), for one who saw `latest` as the latest number and expects all
    /// to be as it was. Saves fetching the line from a peer that is looking at it before writing
    /// to it, which is half of what a signal to another CPU takes.
    #[inline]
    pub(crate) fn signal_after(&self, latest: u64, owner: Owner) -> Result<Signalled, IssueError> {
        let number = latest + 1;
        let expected = Issued::complete(latest);
        if !number.is_multiple_of(WINDOW) && self.move_on(expected, number) {
            return Ok(Signalled::Complete(number));
        }
        self.signal(owner)
    }

    /// Signals at once, or, while earlier signals are unfinished, submits a signal to complete.
    #[inline]
    pub(crate) fn signal(&self, owner: Owner) -> Result<Signalled, IssueError> {
        let current = self.load_issued();
        let number = current.number() + 1;
        let ordinary = current.is_complete() && !number.is_multiple_of(WINDOW);
        if ordinary && self.move_on(current, number) {
            return Ok(Signalled::Complete(number));
        }
        self.signal_slow(owner, None)
    }

    /// The same for all numbers up to `value`.
    pub(crate) fn signal_up_to(&self, owner: Owner, value: u64) -> Result<Signalled, IssueError> {
        self.signal_slow(owner, Some(value))
    }

    #[cold]
    fn signal_slow(&self, owner: Owner, value: Option<u64>) -> Result<Signalled, IssueError> {
        loop {
            let current = self.load_issued();
            let latest = current.number();
            let number = value.unwrap_or(latest + 1);
            check_step(latest, number)?;
            // Nothing can become unfinished again unless a number is taken, and then moving on
            // from `current` fails.
            if current.is_complete() || self.completed() >= latest {
                if current.is_complete() && number / WINDOW != latest / WINDOW {
                    // Lest the words fall so far behind that their lower 32 bits mislead.
                    self.catch_up_all(current);
                }
                if self.move_on(current, number) {
                    return Ok(Signalled::Complete(number));
                }
            } else if self.take(current, number, owner)? {
                return Ok(Signalled::Submitted(tickets(latest, number)));
            }
        }
    }

    /// Takes all numbers up to `value` for signals that complete later.
    pub(crate) fn issue_up_to(&self, owner: Owner, value: u64) -> Result<Vec<Ticket>, IssueError> {
        loop {
            let current = self.load_issued();
            check_step(current.number(), value)?;
            if self.take(current, value, owner)? {
                return Ok(tickets(current.number(), value));
            }
        }
    }

    /// Declares everything up to `number` complete, unless `issued` is no longer `current`.
    #[inline]
    fn move_on(&self, current: Issued, number: u64) -> bool {
        // Sequentially consistent with the sleeper's `fetch_or`: either it sees the number or
        // we see that it watches.
        let moved = self.issued.compare_exchange(
            current.0,
            Issued::complete(number).0,
            Ordering::SeqCst,
            Ordering::Relaxed,
        );
        if moved.is_err() {
            return false;
        }
        self.note_cpu();
        if current.is_watched() {
            self.wake_watchers();
        }
        true
    }

    /// Brings the words that somebody sleeps on up to `issued`, and wakes who has waited enough.
    /// A device leaves no trace in the word that it waits on; for its sake all are brought up.
    #[cold]
    fn wake_watchers(&self) {
        // After the mark in `issued` was seen, and before it whoever set it wrote this.
        let is_armed = self.armed.load(Ordering::SeqCst) != 0;
        loop {
            let current = self.load_issued();
            let mut left = is_armed && self.armed.load(Ordering::SeqCst) > current.number();
            // That of the latest number first: it is what a device waits for, as a rule.
            for step in 0..RING {
                let index = (current.number() + RING - step) % RING;
                let word = self.word(index);
                left |= current.is_complete() && self.catch_up(index, word, current, !is_armed);
            }
            // While numbers are pending, their completions do the waking; the mark stays for the
            // numbers after them.
            if !left && current.is_complete() {
                return;
            }
            let marked = current.0 | WATCHED;
            if self
                .issued
                .compare_exchange(current.0, marked, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
            {
                return;
            }
        }
    }

    /// Moves a word up to `issued`, of which all is complete, and wakes its sleepers. With
    /// `slept_on_only` a word without sleepers stays behind. Whether sleepers are left.
    pub(super) fn catch_up(
        &self,
        index: u64,
        word: &AtomicU64,
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
                    wake_sleepers(word, old);
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
    pub(crate) fn issue(&self, owner: Owner) -> Result<Ticket, IssueError> {
        let current = self.load_issued();
        let latest = current.number();
        // As a rule the one before is this owner's too, and pending.
        let is_ordinary = current.0 & !WATCHED == Issued::pending(latest, owner).0;
        if is_ordinary && latest < WINDOW && self.move_to(current, latest + 1, owner) {
            return Ok(Ticket::single(latest + 1));
        }
        self.issue_slow(owner)
    }

    #[cold]
    fn issue_slow(&self, owner: Owner) -> Result<Ticket, IssueError> {
        loop {
            let current = self.load_issued();
            let number = current.number() + 1;
            if number > MAX_NUMBER {
                return Err(IssueError::Exhausted);
            }
            if self.take(current, number, owner)? {
                return Ok(Ticket::single(number));
            }
        }
    }

    /// Moves `issued` on to `number`, pending, unless it is no longer `current`.
    fn take(&self, current: Issued, number: u64, owner: Owner) -> Result<bool, IssueError> {
        if current.is_complete() {
            self.catch_up_all(current);
            self.record_finished_up_to(current.number());
        } else {
            // Most events never count that far.
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
        Ok(self.move_to(current, number, owner))
    }

    /// The same, all that it needs being there.
    #[inline]
    fn move_to(&self, current: Issued, number: u64, owner: Owner) -> bool {
        let next = Issued::pending(number, owner).0 | current.0 & WATCHED;
        self.issued
            .compare_exchange(current.0, next, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Writes down that `latest` ends its owner's run, before somebody else takes the next number.
    #[cold]
    fn close_run(&self, latest: Issued) -> Result<(), IssueError> {
        let completed = self.completed();
        for offset in 0..RUNS as u64 {
            let place = &self.runs[((latest.number() + offset) % RUNS as u64) as usize];
            let mut old = place.load(Ordering::Acquire);
            loop {
                let recorded = Issued(old).number();
                // A greater number means that `latest` is out of date; taking a number will fail.
                if recorded >= latest.number() {
                    return Ok(());
                }
                if recorded > completed {
                    break;
                }
                // If it fails, it may be for an earlier number that somebody slow has written.
                match place.compare_exchange(old, latest.0, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return Ok(()),
                    Err(seen) => old = seen,
                }
            }
        }
        // What is out of date says nothing about now; taking a number will fail.
        if self.load_issued() != latest {
            return Ok(());
        }
        Err(IssueError::TooManyOwners)
    }

    /// Completes a signal and wakes its waiters.
    pub(crate) fn complete(&self, ticket: Ticket) -> Completion {
        self.finish(ticket, 0)
    }

    /// Completes a signal as failed and wakes its waiters.
    pub(crate) fn fail(&self, ticket: Ticket, reason: FailureReason) -> Completion {
        let word = self.word(ticket.number).load(Ordering::Acquire);
        if sequence(word) != ticket.previous {
            // Its turn may come from now on, but nothing is written down yet.
            return not_its_turn(word, ticket);
        }
        self.record_failure(ticket.first(), ticket.number, reason);
        self.finish(ticket, FAILED)
    }

    fn finish(&self, ticket: Ticket, mark: u64) -> Completion {
        let word = self.word(ticket.number);
        let done = u64::from(ticket.number as u32) << 32 | mark;
        let mut current = word.load(Ordering::Acquire);
        loop {
            if sequence(current) != ticket.previous {
                return not_its_turn(current, ticket);
            }
            match word.compare_exchange_weak(current, done, Ordering::AcqRel, Ordering::Acquire) {
                Ok(old) => {
                    self.note_cpu();
                    wake_sleepers(word, old);
                    self.record_finished(ticket.number);
                    return Completion::Done;
                }
                Err(seen) => current = seen,
            }
        }
    }

    /// Says that the signals `first..=last` of one word failed. Before the word says so.
    pub(super) fn record_failure(&self, first: u64, last: u64, reason: FailureReason) {
        let index = (last % RING) as usize;
        let (from, to) = (&self.failed_from[index], &self.failed_to[index]);
        let recorded = to.load(Ordering::Acquire) >> FailureReason::BITS;
        // Failures that follow one another make one range, so that none of them is forgotten.
        if recorded == 0 || recorded + RING < first {
            // The start first: readers take the end first, so they never see too wide a range,
            // which would make failures of the successes between two.
            from.fetch_max(first, Ordering::AcqRel);
        }
        to.fetch_max(
            last << FailureReason::BITS | reason as u64,
            Ordering::AcqRel,
        );
    }

    /// Tells waiters where signals come from, so that they spin only if that is another CPU.
    #[inline]
    fn note_cpu(&self) {
        let cpu = platform::current_cpu().wrapping_add(1);
        if self.signaller_cpu.load(Ordering::Relaxed) != cpu {
            self.signaller_cpu.store(cpu, Ordering::Relaxed);
        }
    }
}

/// Whether `issued` may go from `latest` to `number` in one step.
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

/// Why a signal cannot complete on `word`, which does not stand at the number before.
fn not_its_turn(word: u64, ticket: Ticket) -> Completion {
    if reached(sequence(word), ticket.number) {
        Completion::Superseded
    } else {
        Completion::TooEarly
    }
}

/// Wakes whoever slept on `word` while it had the value `old`.
#[inline]
pub(super) fn wake_sleepers(word: &AtomicU64, old: u64) {
    if old & SLEEPERS != 0 {
        platform::wake_all(word);
    }
}
