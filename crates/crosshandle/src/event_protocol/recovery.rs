//! What survivors do about the dead.

use super::signal::wake_sleepers;
use super::slot::{FAILED, FailureReason, Issued, Owner, RING, Slot, at_number};
use crate::platform::{AtomicU64, Ordering};

/// Who of an event's processes is still there.
pub(crate) trait Liveness {
    /// Whether the process that signals as `owner` has ended. May make a system call.
    fn is_dead(&self, owner: Owner) -> bool;

    /// Whether the exporter has ended, so that a signal nobody has submitted may never come.
    fn is_abandoned(&self) -> bool {
        self.is_dead(Owner::EXPORTER)
    }

    /// The same as far as it is known without asking, which must be cheap.
    fn is_known_abandoned(&self) -> bool {
        false
    }
}

/// Signals of one owner that are unfinished, on one word.
struct Run {
    owner: u16,
    last: u64,
}

impl Slot {
    /// Fails every unfinished signal whose owner is dead. Any number of survivors may do this at
    /// once, with the same result.
    pub(crate) fn fail_orphans(&self, liveness: &dyn Liveness) {
        for index in 0..RING {
            self.fail_orphans_on(index, liveness);
        }
    }

    /// The same for one completion word.
    pub(super) fn fail_orphans_on(&self, index: u64, liveness: &dyn Liveness) {
        let word = &self.words[index as usize];
        loop {
            let Some((pending, _)) = self.pending(index, word) else {
                return;
            };
            // Behind what it had reached: a dead process's device took it back.
            let settled = self.recorded_on(index).filter(|number| *number >= pending);
            let run = self.run_of(pending);
            let last = run.last - (run.last - pending) % RING;
            if settled.is_none()
                && Owner::new(run.owner).is_some_and(|owner| !liveness.is_dead(owner))
            {
                return;
            }
            // Complete by now: then the run was read from something newer.
            if self.load_issued().is_complete() {
                return;
            }
            // Read after the death was certain: from here only other survivors change this word,
            // and they do the same thing.
            let Some((still_pending, current)) = self.pending(index, word) else {
                return;
            };
            if still_pending != pending {
                continue;
            }
            if settled.is_none() {
                self.record_failure(pending, last, FailureReason::OwnerDied);
            }
            // With the mark, so that everybody looks at what is recorded.
            let last = settled.unwrap_or(last);
            let buried = u64::from(last as u32) << 32 | FAILED;
            if word
                .compare_exchange(current, buried, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                self.record_finished(last);
                wake_sleepers(word, current);
            }
        }
    }

    /// The next signal of a word if it was submitted, and the word as it was read.
    fn pending(&self, index: u64, word: &AtomicU64) -> Option<(u64, u64)> {
        // In this order: a word is exact for every number that was pending when `issued` was read.
        let issued = self.load_issued();
        let current = word.load(Ordering::Acquire);
        if issued.is_complete() {
            return None;
        }
        let at = at_number(current, issued.number());
        // A word whose number isn't its own was written by a stranger: leave it alone.
        if at.rem_euclid(RING as i64) != index as i64 {
            return None;
        }
        let next = u64::try_from(at.checked_add(RING as i64)?).ok()?;
        (next >= 1 && next <= issued.number()).then_some((next, current))
    }

    /// The run of signals that an unfinished signal belongs to.
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
