//! The state of a native mirror: a driver's own event that is signalled along with one of ours.
//!
//! A driver's event knows only its latest signal. A queue may wait for the driver's event in place
//! of number *n* while its latest signal is that of *n*. The word `mirror` holds that number. It
//! also says whether a signal is being submitted to the driver, and counts the waits that are being
//! submitted.
//!
//! At most one signal is submitted at a time, and none during the submission of waits. Drivers do
//! not expect a wait for an event that another process signals at the same time. No thread blocks
//! here: a signal or a wait at a bad time does not use the driver's event. If a process dies
//! between `begin_…` and `end_…`, its bits stay set, and no process uses the driver's event any
//! more.
//!
//! A driver's signal may be revoked. The upper bits of `flags` count revocations, so that the end
//! of a signal is a plain store. Each revocation raises the count before and after its work. No
//! wait begins while the count is odd.

use super::signal::Completion;
use super::slot::{Issued, MIRROR_REQUESTED, Owner, REVOCATION, Slot, WATCHED};
use super::ticket::Ticket;
use crate::platform::{Atomic, Ordering, Platform};
use std::num::NonZeroU8;

/// Bits of `mirror` that hold the number. They are as wide as the number in `issued`. 0 is an
/// unknown number, for example while a signal is being submitted.
const NUMBER: u64 = (1 << 50) - 1;
/// Bit of `mirror` that is set while a signal is being submitted to the driver.
const SIGNALLING: u64 = 1 << 50;
/// Unit of the count in `mirror` of waits that are being submitted to the driver.
const WAITING: u64 = 1 << 51;
/// Bits of `mirror` that count these waits.
const ALL_WAITING: u64 = 255 << 51;

/// The revocation count at the beginning of a wait. The wait is valid until the count changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promise(NonZeroU8);

impl<P: Platform> Slot<P> {
    /// Asks signallers to signal the driver's event too. Without a request, no signaller has to.
    pub fn request_mirror(&self) {
        if !self.is_mirror_requested() {
            self.flags.fetch_or(MIRROR_REQUESTED, Ordering::Relaxed);
        }
    }

    /// Returns whether a queue has requested the mirror. A signaller that notices the request late
    /// only costs its waiters time.
    #[inline]
    pub fn is_mirror_requested(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & MIRROR_REQUESTED != 0
    }

    /// Announces a signal of the driver's event. Returns `false` if it must not be signalled now.
    pub fn begin_mirror_signal(&self) -> bool {
        // No wait may rely on the former number while the driver changes the event.
        self.change_mirror(|current| {
            (current & (SIGNALLING | ALL_WAITING) == 0).then_some(current & !NUMBER | SIGNALLING)
        })
    }

    /// Records that the driver has accepted the signal of `number`. `number` is 0 if unknown.
    pub fn end_mirror_signal(&self, number: u64) {
        // While a signal is being submitted, other threads change the word only to clear the
        // number, which it does not hold then.
        if self.mirror.load(Ordering::Relaxed) & SIGNALLING != 0 {
            self.mirror.store(number & NUMBER, Ordering::Release);
        }
    }

    /// Announces a wait for the driver's event in place of `number`, and prevents signals until the
    /// wait has been submitted. Returns `None` if the driver's event does not represent that
    /// number.
    pub fn begin_mirror_wait(&self, number: u64) -> Option<Promise> {
        let promise = self.promise()?;
        let has_begun = self.change_mirror(|current| {
            let stands = self.stands_for(current, number);
            (stands && current & ALL_WAITING != ALL_WAITING).then(|| current + WAITING)
        });
        if !has_begun {
            return None;
        }
        // The number may have been revoked and signalled again before the word was changed.
        if self.is_revoked(promise) {
            self.end_mirror_wait();
            return None;
        }
        Some(promise)
    }

    /// Records that the driver has accepted the wait.
    pub fn end_mirror_wait(&self) {
        // A hostile peer may have written any value.
        if self.mirror.load(Ordering::Relaxed) & ALL_WAITING != 0 {
            self.mirror.fetch_sub(WAITING, Ordering::SeqCst);
        }
    }

    /// Returns whether the latest signal of the driver's event is the signal for `number`.
    pub fn has_mirror_signal(&self, number: u64) -> bool {
        self.stands_for(self.mirror.load(Ordering::SeqCst), number)
    }

    fn stands_for(&self, mirror: u64, number: u64) -> bool {
        number != 0 && mirror & NUMBER == number
    }

    /// Revokes the driver's signals so far, because some of them will never come.
    pub fn revoke_mirror(&self) {
        self.flags.fetch_add(REVOCATION, Ordering::SeqCst);
        self.mirror.fetch_and(!NUMBER, Ordering::SeqCst);
        self.flags.fetch_add(REVOCATION, Ordering::SeqCst);
    }

    /// Returns whether the signal that a wait relies on was revoked after the wait began.
    pub fn is_revoked(&self, relied_on: Promise) -> bool {
        self.promise() != Some(relied_on)
    }

    /// Returns the promise for a wait that begins now, or `None` during a revocation.
    fn promise(&self) -> Option<Promise> {
        let count = (self.flags.load(Ordering::SeqCst) / REVOCATION) as u8;
        count
            .is_multiple_of(2)
            .then(|| Promise(NonZeroU8::MIN | count))
    }

    /// Replaces the word by the result of `change`. Returns `false` if `change` rejects the word.
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

    /// Returns whether `number` is the latest number, was taken by `owner`, and is not known to be
    /// finished.
    pub fn is_latest_of(&self, number: u64, owner: Owner) -> bool {
        self.load_issued().0 & !WATCHED == Issued::pending(number, owner).0
    }

    /// Completes a signal that a device was seen to give, possibly before its owner knows.
    pub fn complete_observed(&self, number: u64) -> Completion {
        self.complete(Ticket::single(number))
    }
}
