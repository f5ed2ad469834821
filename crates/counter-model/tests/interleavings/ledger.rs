//! A record of what really happened. It is kept next to the protocol and compared with its results.

use crate::event_protocol::{FailureReason, Outcome, Owner, Slot, Ticket, WaitError};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// The protocol's number of completion words. Signals that are this far apart share a word.
const RING: u64 = 7;
/// One more than the greatest owner that a scenario may use.
const OWNERS: usize = 8;

/// The history of one ticket.
#[derive(Clone, Copy)]
struct Submission {
    /// The first number of its word that the ticket completes, which is less than its own after a
    /// jump.
    first: u64,
    owner: Owner,
    /// Whether its submitter has begun to complete it.
    completing: bool,
    /// Whether its submitter has begun to fail it.
    failing: bool,
    /// Whether its submitter was told that it is complete.
    completed: bool,
}

/// A call that may signal immediately.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// The call has not returned, possibly because its caller was killed.
    Unknown,
    /// The call returned tickets or an error.
    NotImmediate,
    /// The call completed this number and, if it jumped, the numbers before it.
    Immediate { number: u64, jumped: bool },
}

/// A result of the protocol for a number without a known ticket, which is checked at the end.
struct EarlyAnswer {
    number: u64,
    failed: bool,
    /// Number of attempts that had begun before the result.
    begun: usize,
    /// The latest number at the time of the result.
    latest: u64,
}

#[derive(Default)]
struct History {
    tickets: BTreeMap<u64, Submission>,
    attempts: Vec<Attempt>,
    early_answers: Vec<EarlyAnswer>,
}

/// The actions of all processes of a scenario. Its lock is never held during a step of the model.
#[derive(Default)]
pub(crate) struct Ledger {
    history: Mutex<History>,
    dead: [AtomicBool; OWNERS],
    /// Changed by each liveness query. A query is a system call in the library, so it is a step of
    /// the model.
    asked: shuttle::sync::atomic::AtomicU32,
}

impl Ledger {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap()
    }

    /// Records the start of a call that may signal immediately, and returns its index.
    pub(crate) fn attempting(&self) -> usize {
        let attempts = &mut self.history().attempts;
        attempts.push(Attempt::Unknown);
        attempts.len() - 1
    }

    /// Records the end of such a call, with the number that it completed immediately, if any.
    pub(crate) fn attempted(&self, attempt: usize, number: Option<u64>, jumped: bool) {
        self.history().attempts[attempt] = match number {
            Some(number) => Attempt::Immediate { number, jumped },
            None => Attempt::NotImmediate,
        };
    }

    /// Records that `owner` took a ticket's number.
    pub(crate) fn submitted(&self, owner: Owner, ticket: Ticket) {
        let step = (ticket.number as u32).wrapping_sub(ticket.previous);
        let submission = Submission {
            first: ticket.number + RING - u64::from(step),
            owner,
            completing: false,
            failing: false,
            completed: false,
        };
        let former = self.history().tickets.insert(ticket.number, submission);
        assert!(former.is_none(), "{} was given out twice", ticket.number);
    }

    /// Records that the submitter is about to complete a ticket.
    pub(crate) fn completing(&self, ticket: Ticket) {
        self.change(ticket, |submission| submission.completing = true);
    }

    /// Records that the submitter is about to fail a ticket.
    pub(crate) fn failing(&self, ticket: Ticket) {
        self.change(ticket, |submission| submission.failing = true);
    }

    /// Records that the submitter was told that a ticket is complete.
    pub(crate) fn completed(&self, ticket: Ticket) {
        self.change(ticket, |submission| submission.completed = true);
    }

    fn change(&self, ticket: Ticket, change: impl FnOnce(&mut Submission)) {
        change(self.history().tickets.get_mut(&ticket.number).unwrap());
    }

    /// Records that a process has ended.
    pub(crate) fn died(&self, owner: Owner) {
        self.dead[usize::from(owner.get())].store(true, Ordering::Relaxed);
    }

    /// Returns whether a process has ended.
    pub(crate) fn is_dead(&self, owner: Owner) -> bool {
        self.dead[usize::from(owner.get())].load(Ordering::Relaxed)
    }

    /// Returns whether a process has ended, as a step of the model. The protocol makes this query.
    pub(crate) fn ask_whether_dead(&self, owner: Owner) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.is_dead(owner)
    }

    /// Returns whether any process has ended.
    pub(crate) fn any_process_died(&self) -> bool {
        self.dead.iter().any(|dead| dead.load(Ordering::Relaxed))
    }

    /// Returns whether the submitter of a number was told that it is complete.
    pub(crate) fn is_completed(&self, number: u64) -> bool {
        let history = self.history();
        let immediate = |attempt: &Attempt| matches!(attempt, Attempt::Immediate { number: n, .. } if *n == number);
        history
            .submission_of(number)
            .is_some_and(|submission| submission.completed)
            || history.attempts.iter().any(immediate)
    }

    /// Compares the result of a wait for `number` with what really happened.
    pub(crate) fn check(&self, number: u64, said: Result<(), WaitError>, slot: &Slot) {
        let latest = slot.issued();
        let mut history = self.history();
        let failed = match said {
            Ok(()) => false,
            Err(WaitError::Failed(reason)) => {
                if let FailureReason::OwnerDied(owner) = reason {
                    let owner = owner.expect("an owner, since no process is hostile here");
                    assert!(
                        self.is_dead(owner),
                        "{owner:?} is said to have died, and lives"
                    );
                }
                true
            }
            Err(WaitError::Abandoned) => {
                assert!(
                    self.is_dead(Owner::EXPORTER),
                    "{number} is said to be abandoned, and the exporter lives"
                );
                return;
            }
            Err(WaitError::TimedOut) => return,
        };
        match history.submission_of(number) {
            None => {
                let begun = history.attempts.len();
                history.early_answers.push(EarlyAnswer {
                    number,
                    failed,
                    begun,
                    latest,
                });
            }
            Some(submission) if failed => assert!(
                !submission.completed && (submission.failing || self.is_dead(submission.owner)),
                "{number} is said to have failed, and its submitter lives or completed it"
            ),
            Some(submission) => assert!(
                submission.completing || history.may_be_forgotten(number, latest),
                "{number} is said to be complete, and no process completed it"
            ),
        }
    }

    /// Compares a polled state of `number` with what really happened. `completed` is the result of
    /// [`Ledger::is_completed`] before the poll.
    pub(crate) fn check_poll(&self, number: u64, outcome: Outcome, completed: bool, slot: &Slot) {
        match outcome {
            Outcome::Pending => assert!(!completed, "{number} was completed, and is pending"),
            Outcome::Complete => self.check(number, Ok(()), slot),
            Outcome::Failed(reason) => self.check(number, Err(WaitError::Failed(reason)), slot),
        }
    }

    /// Checks every signal after `start`. Must be called after all processes have ended and a
    /// survivor has failed the orphans.
    pub(crate) fn check_all(&self, start: u64, slot: &Slot) {
        let first = (start + 1).max(slot.issued().saturating_sub(100));
        for number in first..=slot.issued() {
            let outcome = slot.outcome(number);
            assert_ne!(outcome, Outcome::Pending, "{number} was left over");
            self.check_poll(number, outcome, false, slot);
        }
        assert_eq!(slot.completed(), slot.issued(), "the words are behind");
        let history = self.history();
        for answer in &history.early_answers {
            history.check_early_answer(answer, self.any_process_died());
        }
    }
}

impl History {
    /// Returns the ticket that completes `number`, if one is known.
    fn submission_of(&self, number: u64) -> Option<Submission> {
        self.tickets
            .range(number..)
            .find(|(ticket, _)| *ticket % RING == number % RING)
            .map(|(_, submission)| *submission)
            .filter(|submission| submission.first <= number)
    }

    /// Returns whether the failure of `number` may have been forgotten. A slot holds one range of
    /// failures for each word, so a success and a later failure replace it.
    fn may_be_forgotten(&self, number: u64, latest: u64) -> bool {
        let later = |after: u64| (after + RING..=latest).step_by(RING as usize);
        let succeeded = |n| {
            self.submission_of(n)
                .is_none_or(|submission| submission.completing)
        };
        let failed = |n| {
            self.submission_of(n)
                .is_none_or(|submission| !submission.completed)
        };
        later(number).any(|n| succeeded(n) && later(n).any(failed))
    }

    /// Checks an early result, after all processes have ended and everything is known.
    fn check_early_answer(&self, answer: &EarlyAnswer, any_process_died: bool) {
        let number = answer.number;
        assert!(
            self.submission_of(number).is_none(),
            "{number} was said to be finished before its submitter began to complete it"
        );
        // A jump to `n` completes `number` if no known ticket lies between them.
        let next_ticket = self.tickets.range(number..).next().map(|(n, _)| *n);
        let covers = |attempt: &Attempt| match *attempt {
            Attempt::Immediate { number: n, jumped } => {
                n == number || jumped && n > number && next_ticket.is_none_or(|ticket| ticket > n)
            }
            Attempt::Unknown | Attempt::NotImmediate => false,
        };
        let immediate = self.attempts[..answer.begun].iter().any(covers);
        if answer.failed {
            assert!(
                any_process_died
                    && !self
                        .attempts
                        .iter()
                        .any(|a| matches!(a, Attempt::Immediate { number: n, .. } if *n == number)),
                "{number} is said to have failed, and no process left it unfinished"
            );
        } else {
            let unknown = self.attempts[..answer.begun].contains(&Attempt::Unknown);
            assert!(
                immediate
                    || unknown
                    || any_process_died && self.may_be_forgotten(number, answer.latest),
                "{number} is said to be complete, and no process signalled it"
            );
        }
    }
}
