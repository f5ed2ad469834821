//! What is known of a driver's own event that rides along with one of ours.
//!
//! Such an event only knows its latest signal. A queue may wait for it in place of number *n* if its
//! latest signal is *n*'s, from before the wait is submitted until after. One word says so: which
//! number was signalled last, how many signals are on their way to the driver (their order is not
//! known yet), and how many there were. Who dies between the two leaves a count raised, and
//! nobody waits for the driver's event any more.

use super::signal::{Completion, Ticket};
use super::slot::{RING, Slot};
use crate::platform::Ordering;

/// Bits of the number: 50, as in `issued`.
const NUMBER: u64 = (1 << 50) - 1;
/// Several signals were on their way at once, so that the latest is not known.
const AMBIGUOUS: u64 = 1 << 50;
/// One signal on its way.
const PENDING: u64 = 1 << 51;
const ALL_PENDING: u64 = 31 << 51;
/// One signal that began; wraps.
const BEGUN: u64 = 1 << 56;

/// A state of the word in which its number is the latest signal's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Latest(u64);

impl Slot {
    /// Announces a signal of the driver's event; `false` if there are too many.
    pub(crate) fn begin_companion(&self) -> bool {
        let mut current = self.companion.load(Ordering::SeqCst);
        loop {
            if current & ALL_PENDING == ALL_PENDING {
                return false;
            }
            let others = current & ALL_PENDING != 0;
            let mut next = current.wrapping_add(BEGUN).wrapping_add(PENDING);
            if others {
                next |= AMBIGUOUS;
            }
            match self.exchange_companion(current, next) {
                Ok(()) => return true,
                Err(seen) => current = seen,
            }
        }
    }

    /// The driver has it: number `number`, or 0 if it is not known what it has.
    pub(crate) fn end_companion(&self, number: u64) {
        let mut current = self.companion.load(Ordering::SeqCst);
        loop {
            if current & ALL_PENDING == 0 {
                // Somebody has written nonsense.
                return;
            }
            let mut next = (current - PENDING) & !NUMBER;
            if current & AMBIGUOUS == 0 {
                next |= number & NUMBER;
            }
            if next & ALL_PENDING == 0 {
                next &= !AMBIGUOUS;
            }
            match self.exchange_companion(current, next) {
                Ok(()) => return,
                Err(seen) => current = seen,
            }
        }
    }

    fn exchange_companion(&self, current: u64, next: u64) -> Result<(), u64> {
        self.companion
            .compare_exchange(current, next, Ordering::SeqCst, Ordering::SeqCst)
            .map(drop)
    }

    /// Whether the latest signal of the driver's event is this number's.
    pub(crate) fn latest_companion(&self, number: u64) -> Option<Latest> {
        let current = self.companion.load(Ordering::SeqCst);
        let is_latest = number != 0 && current & (NUMBER | ALL_PENDING) == number;
        is_latest.then_some(Latest(current))
    }

    /// Whether it has been all the time.
    pub(crate) fn is_still(&self, latest: Latest) -> bool {
        self.companion.load(Ordering::SeqCst) == latest.0
    }

    /// Completes a signal that a device was seen to have given; its owner may not know yet.
    pub(crate) fn witness(&self, number: u64) -> Completion {
        self.complete(Ticket {
            number,
            previous: (number as u32).wrapping_sub(RING as u32),
        })
    }
}
