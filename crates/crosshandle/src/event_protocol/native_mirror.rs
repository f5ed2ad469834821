//! The state of a native mirror: a driver's own event that is signalled along with one of ours.
//!
//! A driver's event knows only its latest signal. A queue may wait for it in place of number *n*
//! while its latest signal is that of *n*. The word `mirror` says which number that is, whether a
//! signal is being submitted to the driver, and how many waits are. At most one signal is submitted
//! at a time, and none beside waits, since drivers do not expect a wait for an event that another
//! process signals meanwhile. No thread blocks here: a signal or a wait that comes at a bad time
//! does without the driver's event. A process that dies between `begin_…` and `end_…` leaves its
//! bits set, and from then on every process does without the driver's event.
//!
//! A driver's signal may be revoked. The upper bits of `flags` count that, so that the end of a
//! signal is a plain store: twice each time, before and after. While the count is odd no wait
//! begins.

use super::signal::Completion;
use super::slot::{Issued, MIRROR_REQUESTED, Owner, REVOCATION, Slot, WATCHED};
use super::ticket::Ticket;
use crate::platform::Ordering;
use std::num::NonZeroU8;

/// Bits of `mirror` that hold the number: 50, as in `issued`. 0 stands for an unknown number, as
/// while a signal is being submitted.
const NUMBER: u64 = (1 << 50) - 1;
/// Bit of `mirror` that is set while a signal is being submitted to the driver.
const SIGNALLING: u64 = 1 << 50;
/// One wait that is being submitted to the driver.
const WAITING: u64 = 1 << 51;
/// Bits of `mirror` that count the waits.
const ALL_WAITING: u64 = 255 << 51;

/// The revocation count that a wait relies on: it holds until the next revocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Promise(NonZeroU8);

impl Slot {
    /// Asks signallers to signal the driver's event too. Before that, none has to.
    pub(crate) fn request_mirror(&self) {
        if !self.is_mirror_requested() {
            self.flags.fetch_or(MIRROR_REQUESTED, Ordering::Relaxed);
        }
    }

    /// Returns whether a queue has requested the mirror. A signaller that learns of it late costs
    /// its waiters time and nothing else.
    #[inline]
    pub(crate) fn is_mirror_requested(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & MIRROR_REQUESTED != 0
    }

    /// Announces a signal of the driver's event. `false`: it must not be signalled now.
    pub(crate) fn begin_mirror_signal(&self) -> bool {
        // No wait may rely on the former number while the driver changes the event.
        self.change_mirror(|current| {
            (current & (SIGNALLING | ALL_WAITING) == 0).then_some(current & !NUMBER | SIGNALLING)
        })
    }

    /// Says that the driver has accepted the signal of `number`; 0 if the number is not known.
    pub(crate) fn end_mirror_signal(&self, number: u64) {
        // While a signal is being submitted, other threads change the word only to clear a number
        // that it does not hold.
        if self.mirror.load(Ordering::Relaxed) & SIGNALLING != 0 {
            self.mirror.store(number & NUMBER, Ordering::Release);
        }
    }

    /// Announces a wait for the driver's event in place of `number`, and keeps signals away until
    /// the wait has been submitted. `None`: the event does not stand for that number.
    pub(crate) fn begin_mirror_wait(&self, number: u64) -> Option<Promise> {
        let promise = self.promise()?;
        let has_begun = self.change_mirror(|current| {
            let stands = self.stands_for(current, number);
            (stands && current & ALL_WAITING != ALL_WAITING).then(|| current + WAITING)
        });
        if !has_begun {
            return None;
        }
        // The number may have been revoked, and signalled again, before the word was changed.
        if self.is_revoked(promise) {
            self.end_mirror_wait();
            return None;
        }
        Some(promise)
    }

    /// Says that the driver has accepted the wait.
    pub(crate) fn end_mirror_wait(&self) {
        // A hostile peer may have written any value.
        if self.mirror.load(Ordering::Relaxed) & ALL_WAITING != 0 {
            self.mirror.fetch_sub(WAITING, Ordering::SeqCst);
        }
    }

    /// Returns whether the latest signal of the driver's event is that of `number`.
    pub(crate) fn has_mirror_signal(&self, number: u64) -> bool {
        self.stands_for(self.mirror.load(Ordering::SeqCst), number)
    }

    fn stands_for(&self, mirror: u64, number: u64) -> bool {
        number != 0 && mirror & NUMBER == number
    }

    /// Revokes the driver's signals so far, because some of them will never come.
    pub(crate) fn revoke_mirror(&self) {
        self.flags.fetch_add(REVOCATION, Ordering::SeqCst);
        self.mirror.fetch_and(!NUMBER, Ordering::SeqCst);
        self.flags.fetch_add(REVOCATION, Ordering::SeqCst);
    }

    /// Returns whether the signal that a wait relies on was revoked since the wait began.
    pub(crate) fn is_revoked(&self, relied_on: Promise) -> bool {
        self.promise() != Some(relied_on)
    }

    /// Returns what a wait that begins now relies on; `None` during a revocation.
    fn promise(&self) -> Option<Promise> {
        let count = (self.flags.load(Ordering::SeqCst) / REVOCATION) as u8;
        count
            .is_multiple_of(2)
            .then(|| Promise(NonZeroU8::MIN | count))
    }

    /// Replaces the word by what `change` makes of it. `false`: `change` refused the word.
    fn change_mirror(&self, change: impl Fn(u64) -> Option<u64>) -> bool {
        let mut current = self.mirror.load(Ordering::SeqCst);
        loop {
            let Some(next) = change(current) else {
                return false;
            };
            let changed =
                self.mirror
                    .compare_exchange(current, next, Ordering::SeqCst, Ordering::SeqCst);
            match changed {
                Ok(_) => return true,
                Err(seen) => current = seen,
            }
        }
    }

    /// Returns whether `number` is the latest one, taken by `owner`, and not known to be finished.
    pub(crate) fn is_latest_of(&self, number: u64, owner: Owner) -> bool {
        self.load_issued().0 & !WATCHED == Issued::pending(number, owner).0
    }

    /// Completes a signal that a device was seen to have given, maybe before its owner knows.
    pub(crate) fn complete_observed(&self, number: u64) -> Completion {
        self.complete(Ticket::single(number))
    }
}
