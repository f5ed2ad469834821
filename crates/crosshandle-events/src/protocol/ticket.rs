//! Tickets of submitted signals that must be completed.

use super::slot::{RING, last_of_word};

/// The duty to complete a submitted signal exactly once.
#[must_use = "a signal that is never completed keeps its waiters waiting"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// The signal's number.
    pub number: u64,
    /// Lower 32 bits of the word's number before the signal completes.
    pub previous: u32,
}

impl Ticket {
    /// Returns the ticket of a number that was taken without others.
    #[inline]
    pub fn single(number: u64) -> Self {
        Self {
            number,
            previous: (number as u32).wrapping_sub(RING as u32),
        }
    }

    /// Returns the number that the word must reach first, or `None` before the word's first number.
    #[inline]
    pub fn previous_number(self) -> Option<u64> {
        let step = (self.number as u32).wrapping_sub(self.previous);
        self.number.checked_sub(u64::from(step))
    }

    /// Returns the first number that the ticket completes. After a jump, that is an earlier number
    /// than its own.
    #[inline]
    pub(super) fn first(self) -> u64 {
        let step = (self.number as u32).wrapping_sub(self.previous);
        (self.number + RING).saturating_sub(u64::from(step))
    }
}

/// Returns the tickets that complete all numbers after `latest` up to `number`, one for each word.
#[inline]
pub(super) fn tickets(latest: u64, number: u64) -> Vec<Ticket> {
    let first = (latest + 1).max(number.saturating_sub(RING - 1));
    let ticket = |number| Ticket {
        number,
        previous: last_of_word(number % RING, latest) as u32,
    };
    (first..=number).map(ticket).collect()
}
