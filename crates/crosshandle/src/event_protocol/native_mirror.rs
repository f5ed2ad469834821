//! What is known of a driver's own event that rides along with one of ours.
//!
//! Such an event only knows its latest signal. A queue may wait for it in place of number *n* while
//! its latest signal is *n*'s. One word says so: which number was signalled last, whether a signal
//! is on its way to the driver, and how many waits are. There is one signal at a time and none
//! beside waits, as drivers don't expect to be asked about an event while another process signals
//! it. Nobody waits for anybody here: a signal or a wait that comes at a bad time goes without the
//! driver's event. Who dies between the two ends leaves his mark, and so does everybody from then
//! on.
//!
//! What was signalled may be taken back. `marks` counts that, so that a signal ends with a plain
//! store: twice each time, before and after, and while the count is odd nobody begins to wait.

use super::signal::Completion;
use super::slot::{DEVICE_WAITS, Issued, Owner, REVOKED, Slot, WATCHED};
use super::ticket::Ticket;
use crate::platform::Ordering;
use std::num::NonZeroU8;

/// Bits of the number: 50, as in `issued`. 0: it is not known, as while a signal is on its way.
const NUMBER: u64 = (1 << 50) - 1;
/// A signal is on its way.
const SIGNALLING: u64 = 1 << 50;
/// One wait on its way.
const WAITING: u64 = 1 << 51;
const ALL_WAITING: u64 = 255 << 51;

/// Which promises of the driver's event a wait relies on: those before they are next revoked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Promise(NonZeroU8);

impl Slot {
    /// Asks whoever signals to signal the driver's event too. Before that, nobody need.
    pub(crate) fn request_mirror(&self) {
        if !self.is_mirror_requested() {
            self.marks.fetch_or(DEVICE_WAITS, Ordering::Relaxed);
        }
    }

    /// Whether somebody has asked for that. Who doesn't know yet loses nothing but time.
    #[inline]
    pub(crate) fn is_mirror_requested(&self) -> bool {
        self.marks.load(Ordering::Relaxed) & DEVICE_WAITS != 0
    }

    /// Announces a signal of the driver's event; `false` if it can't be given now.
    pub(crate) fn begin_mirror_signal(&self) -> bool {
        // Nobody may rely on the number before while the driver changes the event.
        self.change_mirror(|current| {
            (current & (SIGNALLING | ALL_WAITING) == 0).then_some(current & !NUMBER | SIGNALLING)
        })
    }

    /// The driver has it: number `number`, or 0 if it is not known what it has.
    pub(crate) fn end_mirror_signal(&self, number: u64) {
        // Nobody else changes the word while a signal is on its way, but to clear a number that it
        // hasn't got.
        if self.mirror.load(Ordering::Relaxed) & SIGNALLING != 0 {
            self.mirror.store(number & NUMBER, Ordering::Release);
        }
    }

    /// Announces a wait for the driver's event in place of this number, and keeps signals away
    /// until it has ended. `None` if the event doesn't stand for that number.
    pub(crate) fn begin_mirror_wait(&self, number: u64) -> Option<Promise> {
        let promise = self.promise()?;
        let has_begun = self.change_mirror(|current| {
            let stands = self.stands_for(current, number);
            (stands && current & ALL_WAITING != ALL_WAITING).then(|| current + WAITING)
        });
        if !has_begun {
            return None;
        }
        // What the word said may have been taken back before, and signalled again.
        if self.is_revoked(promise) {
            self.end_mirror_wait();
            return None;
        }
        Some(promise)
    }

    /// The driver has it.
    pub(crate) fn end_mirror_wait(&self) {
        // A stranger may have written anything.
        if self.mirror.load(Ordering::Relaxed) & ALL_WAITING != 0 {
            self.mirror.fetch_sub(WAITING, Ordering::SeqCst);
        }
    }

    /// Whether the latest signal of the driver's event is this number's.
    pub(crate) fn has_mirror_signal(&self, number: u64) -> bool {
        self.stands_for(self.mirror.load(Ordering::SeqCst), number)
    }

    fn stands_for(&self, mirror: u64, number: u64) -> bool {
        number != 0 && mirror & NUMBER == number
    }

    /// Takes back what was signalled: some of it will never come.
    pub(crate) fn revoke_mirror(&self) {
        self.marks.fetch_add(REVOKED, Ordering::SeqCst);
        self.mirror.fetch_and(!NUMBER, Ordering::SeqCst);
        self.marks.fetch_add(REVOKED, Ordering::SeqCst);
    }

    /// Whether what a wait relies on was taken back since.
    pub(crate) fn is_revoked(&self, relied_on: Promise) -> bool {
        self.promise() != Some(relied_on)
    }

    /// What a wait that begins now relies on; `None` while something is taken back.
    fn promise(&self) -> Option<Promise> {
        let count = (self.marks.load(Ordering::SeqCst) / REVOKED) as u8;
        count
            .is_multiple_of(2)
            .then(|| Promise(NonZeroU8::MIN | count))
    }

    /// Changes the word, unless it doesn't suit.
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

    /// Whether a signal is unfinished, as far as is known, and the latest, and this owner's.
    pub(crate) fn is_latest_of(&self, number: u64, owner: Owner) -> bool {
        self.load_issued().0 & !WATCHED == Issued::pending(number, owner).0
    }

    /// Completes a signal that a device was seen to have given; its owner may not know yet.
    pub(crate) fn complete_observed(&self, number: u64) -> Completion {
        self.complete(Ticket::single(number))
    }
}
