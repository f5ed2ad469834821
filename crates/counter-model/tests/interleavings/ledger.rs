//! What really happened, kept beside the protocol and compared with what it says.

use crate::event_protocol::{Outcome, Owner, Slot, Ticket, WaitError};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// As the protocol has it: signals that far apart use one word.
const RING: u64 = 7;
/// Owners that a scenario may use, and one.
const OWNERS: usize = 8;

/// One ticket's story.
#[derive(Clone, Copy)]
struct Entry {
    /// The first number of its word that it completes: less than its own after a jump.
    first: u64,
    owner: Owner,
    /// Its submitter has begun to complete it.
    completing: bool,
    /// Its submitter has begun to fail it.
    failing: bool,
    /// Its submitter was told that it is complete.
    completed: bool,
}

/// One call that may signal at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// Its caller was killed in it, or it has not returned.
    Unknown,
    /// It gave out tickets, or an error.
    NotAtOnce,
    /// This number, and if it jumped those before it.
    AtOnce { number: u64, jumped: bool },
}

/// What the protocol said about a number that no ticket was known for.
struct Claim {
    number: u64,
    failed: bool,
    /// Attempts that had begun by then.
    begun: usize,
    /// The latest number by then.
    latest: u64,
}

#[derive(Default)]
struct Books {
    tickets: BTreeMap<u64, Entry>,
    attempts: Vec<Attempt>,
    claims: Vec<Claim>,
}

/// All that the processes of a scenario did. Its lock is never held over a step of the model.
#[derive(Default)]
pub(crate) struct Ledger {
    books: Mutex<Books>,
    dead: [AtomicBool; OWNERS],
    /// Asking whether somebody lives is a system call, so others may run meanwhile.
    asked: shuttle::sync::atomic::AtomicU32,
}

impl Ledger {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap()
    }

    /// Before a call that may signal at once.
    pub(crate) fn attempting(&self) -> usize {
        let attempts = &mut self.books().attempts;
        attempts.push(Attempt::Unknown);
        attempts.len() - 1
    }

    /// After it: the number that it completed, if it did.
    pub(crate) fn attempted(&self, attempt: usize, number: Option<u64>, jumped: bool) {
        self.books().attempts[attempt] = match number {
            Some(number) => Attempt::AtOnce { number, jumped },
            None => Attempt::NotAtOnce,
        };
    }

    pub(crate) fn submitted(&self, owner: Owner, ticket: Ticket) {
        let step = (ticket.number as u32).wrapping_sub(ticket.previous);
        let entry = Entry {
            first: ticket.number + RING - u64::from(step),
            owner,
            completing: false,
            failing: false,
            completed: false,
        };
        let former = self.books().tickets.insert(ticket.number, entry);
        assert!(former.is_none(), "{} was given out twice", ticket.number);
    }

    pub(crate) fn completing(&self, ticket: Ticket) {
        self.change(ticket, |entry| entry.completing = true);
    }

    pub(crate) fn failing(&self, ticket: Ticket) {
        self.change(ticket, |entry| entry.failing = true);
    }

    pub(crate) fn completed(&self, ticket: Ticket) {
        self.change(ticket, |entry| entry.completed = true);
    }

    fn change(&self, ticket: Ticket, change: impl FnOnce(&mut Entry)) {
        change(self.books().tickets.get_mut(&ticket.number).unwrap());
    }

    pub(crate) fn died(&self, owner: Owner) {
        self.dead[usize::from(owner.get())].store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_dead(&self, owner: Owner) -> bool {
        self.dead[usize::from(owner.get())].load(Ordering::Relaxed)
    }

    /// The same, as the protocol asks it.
    pub(crate) fn ask_whether_dead(&self, owner: Owner) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.is_dead(owner)
    }

    pub(crate) fn anybody_died(&self) -> bool {
        self.dead.iter().any(|dead| dead.load(Ordering::Relaxed))
    }

    /// Whether the submitter of a number was told that it is complete.
    pub(crate) fn is_completed(&self, number: u64) -> bool {
        let books = self.books();
        let at_once = |attempt: &Attempt| matches!(attempt, Attempt::AtOnce { number: n, .. } if *n == number);
        books.entry(number).is_some_and(|entry| entry.completed)
            || books.attempts.iter().any(at_once)
    }

    /// Compares what the protocol says about `number` with what happened.
    pub(crate) fn check(&self, number: u64, said: Result<(), WaitError>, slot: &Slot) {
        let latest = slot.issued();
        let mut books = self.books();
        let failed = match said {
            Ok(()) => false,
            Err(WaitError::Failed(_)) => true,
            Err(WaitError::Abandoned) => {
                assert!(
                    self.is_dead(Owner::EXPORTER),
                    "{number} is said to be abandoned, and the exporter lives"
                );
                return;
            }
            Err(WaitError::TimedOut) => return,
        };
        match books.entry(number) {
            None => {
                let begun = books.attempts.len();
                books.claims.push(Claim {
                    number,
                    failed,
                    begun,
                    latest,
                });
            }
            Some(entry) if failed => assert!(
                !entry.completed && (entry.failing || self.is_dead(entry.owner)),
                "{number} is said to have failed, and its submitter lives or completed it"
            ),
            Some(entry) => assert!(
                entry.completing || books.may_be_forgotten(number, latest),
                "{number} is said to be complete, and nobody completed it"
            ),
        }
    }

    /// The same for a look instead of a wait. `completed`: what [`Ledger::is_completed`] said
    /// before it.
    pub(crate) fn check_look(&self, number: u64, outcome: Outcome, completed: bool, slot: &Slot) {
        match outcome {
            Outcome::Pending => assert!(!completed, "{number} was completed, and is pending"),
            Outcome::Complete => self.check(number, Ok(()), slot),
            Outcome::Failed(reason) => self.check(number, Err(WaitError::Failed(reason)), slot),
        }
    }

    /// Checks every signal after `start` once all processes have ended and the dead are buried.
    pub(crate) fn check_all(&self, start: u64, slot: &Slot) {
        let first = (start + 1).max(slot.issued().saturating_sub(100));
        for number in first..=slot.issued() {
            let outcome = slot.outcome(number);
            assert_ne!(outcome, Outcome::Pending, "{number} was left over");
            self.check_look(number, outcome, false, slot);
        }
        assert_eq!(slot.completed(), slot.issued(), "the words are behind");
        let books = self.books();
        for claim in &books.claims {
            books.record_finished(claim, self.anybody_died());
        }
    }
}

impl Books {
    /// The ticket that completes `number`, if any is known.
    fn entry(&self, number: u64) -> Option<Entry> {
        self.tickets
            .range(number..)
            .find(|(ticket, _)| *ticket % RING == number % RING)
            .map(|(_, entry)| *entry)
            .filter(|entry| entry.first <= number)
    }

    /// Whether the failure of `number` may have been replaced: a slot remembers one range of
    /// failures a word, so a success and a failure after it end the memory.
    fn may_be_forgotten(&self, number: u64, latest: u64) -> bool {
        let later = |after: u64| (after + RING..=latest).step_by(RING as usize);
        let succeeded = |n| self.entry(n).is_none_or(|entry| entry.completing);
        let failed = |n| self.entry(n).is_none_or(|entry| !entry.completed);
        later(number).any(|n| succeeded(n) && later(n).any(failed))
    }

    /// Checks what was said about a number without a ticket, now that all is known.
    fn record_finished(&self, claim: &Claim, anybody_died: bool) {
        let number = claim.number;
        assert!(
            self.entry(number).is_none(),
            "{number} was settled before its submitter began to complete it"
        );
        // Numbers up to the next one that anybody is known to have taken.
        let next_ticket = self.tickets.range(number..).next().map(|(n, _)| *n);
        let covers = |attempt: &Attempt| match *attempt {
            Attempt::AtOnce { number: n, jumped } => {
                n == number || jumped && n > number && next_ticket.is_none_or(|ticket| ticket > n)
            }
            Attempt::Unknown | Attempt::NotAtOnce => false,
        };
        let at_once = self.attempts[..claim.begun].iter().any(covers);
        if claim.failed {
            assert!(
                anybody_died
                    && !self
                        .attempts
                        .iter()
                        .any(|a| matches!(a, Attempt::AtOnce { number: n, .. } if *n == number)),
                "{number} is said to have failed, and nobody left it unfinished"
            );
        } else {
            let unknown = self.attempts[..claim.begun].contains(&Attempt::Unknown);
            assert!(
                at_once || unknown || anybody_died && self.may_be_forgotten(number, claim.latest),
                "{number} is said to be complete, and nobody signalled it"
            );
        }
    }
}
