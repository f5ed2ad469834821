//! Support for devices that signal an event or wait for it.
//!
//! A device has two operations. It writes the upper half of a word, and it waits until the upper
//! half of a word has reached a number. The process that submits to the device ensures the rest:
//! - The word is written at all ([`Slot::prepare_device_wait`]).
//! - The signals of one word are written in order ([`Slot::may_write`]).
//! - Waiters do not rely on being woken ([`Slot::mark_device_signals`]).

use super::recovery::Liveness;
use super::slot::{
    DEVICE_SIGNALS, Issued, MAX_NUMBER, MAY_FAIL, RING, Slot, WATCHED, full_number, reached,
    sequence,
};
use super::ticket::Ticket;
use super::wait::Outcome;
use crate::platform::{Atomic, Ordering, Platform};

/// Maximum distance between a word and the number that a device waits for there. A device compares
/// 32-bit numbers cyclically, which orders only numbers within 2³¹ of each other.
const REACH: i64 = 1 << 30;

/// The result of preparing a device's wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceWait {
    /// The signal is finished, so the device does not need to wait.
    Finished,
    /// The device can wait, because the signal's word will reach its number when the signal
    /// finishes.
    Ready,
    /// The signal's number exceeds the maximum, or is more than 2³⁰ ahead of the current number in
    /// its word. The device could take such a number for a past one.
    TooFarAhead,
}

impl<P: Platform> Slot<P> {
    /// Returns the completion word of a signal. Devices use only its upper half.
    pub fn word_of(&self, number: u64) -> &P::AtomicU64 {
        self.word(number)
    }

    /// Ensures that a signal's word reaches the signal's number when the signal finishes. An
    /// immediate signaller writes the words only if `WATCHED` is set.
    pub fn prepare_device_wait(&self, number: u64) -> DeviceWait {
        if number > MAX_NUMBER {
            return DeviceWait::TooFarAhead;
        }
        if self.is_device_wait_prepared(number) {
            return DeviceWait::Ready;
        }
        let index = number % RING;
        let word = self.word(number);
        loop {
            let issued = self.load_issued();
            if number <= issued.number() {
                // Words are exact while numbers are pending.
                return match self.outcome(number) {
                    Outcome::Pending => DeviceWait::Ready,
                    Outcome::Complete | Outcome::Failed(_) => DeviceWait::Finished,
                };
            }
            if issued.is_complete() {
                self.catch_up(index, word, issued, false);
            }
            let at = full_number(word.load(Ordering::Acquire), issued.number());
            if number as i64 - at > REACH {
                return DeviceWait::TooFarAhead;
            }
            // This order ensures that a signaller that sees `WATCHED` also sees the number. A
            // signaller that has just cleared `WATCHED` sets it again if it sees the number.
            if self.max_device_wait.load(Ordering::SeqCst) < number {
                self.max_device_wait.fetch_max(number, Ordering::SeqCst);
            }
            if number > self.set_watched().number() {
                return DeviceWait::Ready;
            }
        }
    }

    /// Returns whether an earlier call has prepared a wait for this number, which is not yet taken.
    #[inline]
    fn is_device_wait_prepared(&self, number: u64) -> bool {
        // The two reads have the same order as the writes in `prepare_device_wait`.
        if self.max_device_wait.load(Ordering::SeqCst) < number {
            return false;
        }
        let issued = Issued(self.issued.load(Ordering::SeqCst));
        if number <= issued.number() || !issued.is_watched() {
            return false;
        }
        let word = self.word(number).load(Ordering::Acquire);
        number as i64 - full_number(word, issued.number()) <= REACH
    }

    /// Sets `WATCHED` and returns the former `issued`. Usually the bit is set already, and then
    /// nothing is written, because devices poll the same cache line.
    fn set_watched(&self) -> Issued {
        let issued = Issued(self.issued.load(Ordering::SeqCst));
        match issued.is_watched() {
            true => issued,
            false => Issued(self.issued.fetch_or(WATCHED, Ordering::SeqCst)),
        }
    }

    /// Returns whether the word of a finished signal has reached its number, which releases a
    /// device that waits for it. An immediate signaller writes the word a moment after `issued`,
    /// unless it is killed or stopped in between.
    #[inline]
    pub fn is_written(&self, number: u64) -> bool {
        reached(sequence(self.word(number).load(Ordering::Acquire)), number)
    }

    /// Releases a device that waits for `number` if the signaller could not do so. The function
    /// fails the signal of a dead process. It also writes the word for an immediate signaller that
    /// was killed or stopped before its write. The caller must call it at intervals while the
    /// device waits.
    pub fn help_device_wait(&self, number: u64, liveness: &dyn Liveness) {
        let issued = self.load_issued();
        if number > issued.number() {
            return;
        }
        if issued.is_complete() {
            self.catch_up(number % RING, self.word(number), issued, false);
        } else {
            self.fail_orphans_on(number % RING, liveness);
        }
    }

    /// Records that a signal has finished, independently of its word, if devices signal the event.
    ///
    /// The device of a killed process runs for some milliseconds longer. It may still write a
    /// number that survivors have failed and passed, which sets the word back. The queue calls this
    /// function when it finds a device's signal done. Host signallers and survivors call it
    /// themselves.
    #[inline]
    pub fn record_finished(&self, number: u64) {
        if self.is_device_signalled() {
            self.finished[(number % RING) as usize].fetch_max(number, Ordering::AcqRel);
        }
    }

    /// Records for every word that all signals up to `latest` have finished.
    pub(super) fn record_finished_up_to(&self, latest: u64) {
        if self.is_device_signalled() {
            for number in (latest + 1).saturating_sub(RING)..=latest {
                self.record_finished(number);
            }
        }
    }

    /// Returns the recorded finished number of word `index`, if it exists and is plausible.
    pub(super) fn finished_on(&self, index: u64) -> Option<u64> {
        let number = self.finished[index as usize].load(Ordering::Acquire);
        (number != 0 && number <= self.issued()).then_some(number)
    }

    /// Returns whether a device may write the signal now. Otherwise the device must first wait
    /// until the word has reached `ticket.previous`.
    pub fn may_write(&self, ticket: Ticket) -> bool {
        let word = self.word(ticket.number).load(Ordering::Acquire);
        reached(sequence(word), u64::from(ticket.previous))
    }

    /// Records that devices signal this event and wake no sleeper. Must be called before the first
    /// such signal is submitted.
    #[inline]
    pub fn mark_device_signals(&self) {
        if self.flags.load(Ordering::Relaxed) & DEVICE_SIGNALS == 0 {
            self.set_device_signals();
        }
    }

    #[cold]
    fn set_device_signals(&self) {
        // This is sequentially consistent with a sleeper that counts itself and then reads the
        // flag. A sleeper that missed the flag is counted by now, and this wake makes it read the
        // flag.
        self.flags.fetch_or(DEVICE_SIGNALS, Ordering::SeqCst);
        for word in &self.words {
            Self::wake_sleepers(word, word.load(Ordering::SeqCst));
        }
    }

    /// Returns whether devices signal this event.
    #[inline]
    pub(super) fn is_device_signalled(&self) -> bool {
        self.flags.load(Ordering::SeqCst) & DEVICE_SIGNALS != 0
    }

    /// Records that signals of this event may fail although no process dies, for submitters of
    /// dependent commands. Must be called before the first such signal's number is taken.
    #[inline]
    pub fn mark_fallible(&self) {
        if self.flags.load(Ordering::Relaxed) & MAY_FAIL == 0 {
            self.flags.fetch_or(MAY_FAIL, Ordering::Relaxed);
        }
    }

    /// Returns whether signals of this event may fail although no process dies.
    #[inline]
    pub fn is_fallible(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & MAY_FAIL != 0
    }
}
