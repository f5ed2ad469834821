//! Recovery of signals that dead processes left unfinished.

use super::slot::{FAILED, FailureReason, Issued, Owner, RING, RUNS, Slot, full_number};
use crate::platform::{Atomic, Ordering, Platform};

/// Maximum number of attempts of a survivor on one word. A word has at most one more run of
/// unfinished signals than a slot can record, and the rest allows for changes by other survivors.
/// Without this limit, a hostile process could occupy a survivor by changing a word again and
/// again.
pub const MAX_SURVIVOR_ROUNDS: usize = 4 * RUNS;

/// Tells which of the processes attached to an event are alive.
pub trait Liveness {
    /// Returns whether the process with this owner number has ended. May make a system call.
    fn is_dead(&self, owner: Owner) -> bool;

    /// Returns whether numbers not yet taken are abandoned. They are if the exporter has ended, or
    /// if a process ended with the event open and no other process has it open now. May make a
    /// system call.
    fn is_abandoned(&self) -> bool {
        self.is_dead(Owner::EXPORTER)
    }

    /// Returns whether numbers not yet taken are already known to be abandoned. Must be cheap,
    /// without a system call.
    fn is_known_abandoned(&self) -> bool {
        false
    }

    /// Returns whether the exporter is known to have ended, so that no process reports deaths. Must
    /// be cheap, without a system call.
    fn is_known_orphan(&self) -> bool {
        self.is_known_abandoned()
    }

    /// Requests that the signals of a process are failed when it ends. `owner` returns the process.
    /// The function is called before each sleep, so repeated calls must be cheap.
    fn watch(&self, owner: &dyn Fn() -> Option<Owner>) {
        let _ = owner;
    }

    /// Records that the calling thread sleeps until signal `number` has finished, so that reports
    /// can show it. Returns the argument for [`end_sleep`](Self::end_sleep), or `None` if nothing
    /// was recorded.
    fn begin_sleep(&self, _number: u64) -> Option<usize> {
        None
    }

    /// Records that a thread no longer sleeps.
    fn end_sleep(&self, _place: usize) {}
}

/// A submitted but unfinished signal, as recorded in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unfinished {
    pub number: u64,
    /// The owner that submitted the signal. If a hostile process wrote it, it may not be a valid
    /// owner.
    pub owner: u16,
}

/// A range of numbers up to `last` that one owner took in succession.
struct Run {
    owner: u16,
    last: u64,
}

impl<P: Platform> Slot<P> {
    /// Fails every unfinished signal whose owner is dead. Any number of survivors may do this at
    /// the same time, with the same result.
    pub fn fail_orphans(&self, liveness: &dyn Liveness) {
        for index in 0..RING {
            self.fail_orphans_on(index, liveness);
        }
    }

    /// Returns the first unfinished signals in the order of their numbers, at most `most` of them.
    #[allow(dead_code)] // For reports, which the model checkers make none of.
    pub fn unfinished_signals(&self, most: usize) -> Vec<Unfinished> {
        let last = self.submitted();
        let mut next: [Option<u64>; RING as usize] = std::array::from_fn(|index| {
            let pending = self.pending(index as u64, &self.words[index]);
            pending.map(|(number, _)| number)
        });
        let mut all = Vec::new();
        while all.len() < most {
            let of_words = next.iter_mut().flatten();
            let Some(least) = of_words.filter(|number| **number <= last).min() else {
                break;
            };
            let number = *least;
            *least += RING;
            let owner = self.run_of(number).owner;
            all.push(Unfinished { number, owner });
        }
        all
    }

    /// Returns the first signal that must finish before `number` has finished. Usually that is
    /// `number` itself, otherwise an earlier signal on the same word. Returns `None` if `number`
    /// has finished or was not submitted.
    pub fn culprit_of(&self, number: u64) -> Option<Unfinished> {
        let (first, _) = self.pending(number % RING, self.word(number))?;
        (first <= number && number <= self.issued()).then(|| Unfinished {
            number: first,
            owner: self.run_of(first).owner,
        })
    }

    /// Fails every unfinished signal of completion word `index` whose owner is dead.
    pub(super) fn fail_orphans_on(&self, index: u64, liveness: &dyn Liveness) {
        let word = &self.words[index as usize];
        // A round without a change means that another process has changed the word.
        for _ in 0..MAX_SURVIVOR_ROUNDS {
            let Some((pending, _)) = self.pending(index, word) else {
                return;
            };
            // If the word is behind a number that it had reached, a dead process's device set it
            // back.
            let finished = self.finished_on(index).filter(|number| *number >= pending);
            let run = self.run_of(pending);
            let last = run.last - (run.last - pending) % RING;
            let owner = Owner::new(run.owner);
            if finished.is_none() && owner.is_some_and(|owner| !liveness.is_dead(owner)) {
                return;
            }
            // If everything is complete by now, the run was read from newer values.
            if self.load_issued().is_complete() {
                return;
            }
            // This read comes after the death is certain. From here on, only other survivors change
            // this word, and they store the same value.
            let Some((still_pending, current)) = self.pending(index, word) else {
                return;
            };
            if still_pending != pending {
                continue;
            }
            if finished.is_none() {
                self.record_failure(pending, last, FailureReason::OwnerDied(owner));
            }
            // `FAILED` makes every reader consult the recorded failures, even for a success.
            let last = finished.unwrap_or(last);
            let failed_word = u64::from(last as u32) << 32 | FAILED;
            if word
                .compare_exchange(current, failed_word, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                self.record_finished(last);
                Self::wake_sleepers(word, current);
            }
        }
    }

    /// Returns the owner that took a number, or `None` if the number is not taken.
    pub(super) fn owner_of(&self, number: u64) -> Option<Owner> {
        let is_taken = number <= self.load_issued().number();
        is_taken.then(|| Owner::new(self.run_of(number).owner))?
    }

    /// Returns the oldest unfinished number of a word, and the word's value when it was read.
    fn pending(&self, index: u64, word: &P::AtomicU64) -> Option<(u64, u64)> {
        // In this order, a word is exact for every number that was pending when `issued` was read.
        let issued = self.load_issued();
        let current = word.load(Ordering::Acquire);
        if issued.is_complete() {
            return None;
        }
        let at = full_number(current, issued.number());
        // A hostile peer wrote a number that does not belong to the word, so the word is left
        // alone.
        if at.rem_euclid(RING as i64) != index as i64 {
            return None;
        }
        let next = u64::try_from(at.checked_add(RING as i64)?).ok()?;
        (next >= 1 && next <= issued.number()).then_some((next, current))
    }

    /// Returns the run that an unfinished number belongs to.
    fn run_of(&self, number: u64) -> Run {
        let mut run = self.load_issued();
        for record in &self.runs {
            let ended = Issued(record.load(Ordering::Acquire));
            if ended.number() >= number && ended.number() < run.number() {
                run = ended;
            }
        }
        Run {
            owner: run.owner(),
            last: run.number().max(number),
        }
    }
}
