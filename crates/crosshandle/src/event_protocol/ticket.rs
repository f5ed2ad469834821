//! Signals that were submitted and are to be completed.

use super::slot::{RING, last_of_word};

/// A submitted signal, to be completed once by whoever submitted it.
#[must_use = "a signal that is never completed keeps its waiters waiting"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket {
    /// The signal's number.
    pub(crate) number: u64,
    /// The number that the signal's word must stand at before (its lower 32 bits).
    pub(crate) previous: u32,
}

impl Ticket {
    /// For a number that was taken alone.
    #[inline]
    pub(crate) fn single(number: u64) -> Self {
        Self {
            number,
            previous: (number as u32).wrapping_sub(RING as u32),
        }
    }

    /// The number that its word must have reached before, if there was one.
    pub(crate) fn previous_number(self) -> Option<u64> {
        let step = (self.number as u32).wrapping_sub(self.previous);
        self.number.checked_sub(u64::from(step))
    }

    /// The first number that it completes: its own, or one before it after a jump.
    pub(super) fn first(self) -> u64 {
        let step = (self.number as u32).wrapping_sub(self.previous);
        (self.number + RING).saturating_sub(u64::from(step))
    }
}

/// What completes all numbers from `latest` on up to `number`: one ticket a word.
pub(super) fn tickets(latest: u64, number: u64) -> Vec<Ticket> {
    let first = (latest + 1).max(number.saturating_sub(RING - 1));
    let ticket = |number| Ticket {
        number,
        previous: last_of_word(number % RING, latest) as u32,
    };
    (first..=number).map(ticket).collect()
}
