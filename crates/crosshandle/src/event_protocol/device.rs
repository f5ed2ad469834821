//! Support for devices that signal an event or wait for it.
//!
//! A device knows one operation each way: it writes the upper half of a word, and it waits until
//! the upper half of a word has reached a number. The process that submits to the device takes
//! care of the rest: that the word is written at all ([`Slot::prepare_device_wait`]), that the
//! signals of one word are written in order ([`Slot::may_write`]), and that waiters do not rely on
//! being woken ([`Slot::mark_device_signals`]).

use super::recovery::Liveness;
use super::signal::wake_sleepers;
use super::slot::{
    DEVICE_SIGNALS, Issued, MAX_NUMBER, MAY_FAIL, RING, Slot, WATCHED, full_number, reached,
    sequence,
};
use super::ticket::Ticket;
use super::wait::Outcome;
use crate::platform::{AtomicU64, Ordering};

/// Greatest distance of a number that a device waits for from its word. A device compares 32-bit
/// numbers cyclically, which orders only numbers within 2³¹ of each other.
const REACH: i64 = 1 << 30;

/// The result of preparing a device's wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeviceWait {
    /// The signal is finished: the device has nothing to wait for.
    Finished,
    /// The device can wait: the signal's word will reach its number when the signal finishes.
    Ready,
    /// The signal is more than 2³⁰ ahead of its word, so that the device might take it for a past one,
    /// or beyond the greatest number.
    TooFarAhead,
}

impl Slot {
    /// Returns the completion word of a signal. Devices use its upper half alone.
    pub(crate) fn word_of(&self, number: u64) -> &AtomicU64 {
        self.word(number)
    }

    /// Makes sure that a signal's word reaches the signal's number when the signal finishes. An
    /// immediate signaller writes the words only if `WATCHED` tells it to.
    pub(crate) fn prepare_device_wait(&self, number: u64) -> DeviceWait {
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
            // In this order: a signaller that finds `WATCHED` also finds the number. A signaller
            // that cleared `WATCHED` just before sets it again if it finds the number.
            if self.max_device_wait.load(Ordering::SeqCst) < number {
                self.max_device_wait.fetch_max(number, Ordering::SeqCst);
            }
            if number > self.set_watched().number() {
                return DeviceWait::Ready;
            }
        }
    }

    /// Returns whether a former call has prepared a wait for this number, which is not yet taken.
    #[inline]
    fn is_device_wait_prepared(&self, number: u64) -> bool {
        // In this order, as in `prepare_device_wait`.
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

    /// Sets `WATCHED` and returns the former `issued`. Does not write if the bit is set already, as
    /// it is as a rule: devices poll the same cache line.
    fn set_watched(&self) -> Issued {
        let issued = Issued(self.issued.load(Ordering::SeqCst));
        match issued.is_watched() {
            true => issued,
            false => Issued(self.issued.fetch_or(WATCHED, Ordering::SeqCst)),
        }
    }

    /// Returns whether a device that waits for a finished signal is released. An immediate
    /// signaller writes the word a moment after `issued`, unless it is killed or stopped between.
    #[inline]
    pub(crate) fn is_written(&self, number: u64) -> bool {
        reached(sequence(self.word(number).load(Ordering::Acquire)), number)
    }

    /// Releases a device that waits for `number` if the signaller could not: fails the signal of a
    /// dead process, or writes the word for an immediate signaller that was killed or stopped
    /// before it did. Must be called at intervals while the device waits.
    pub(crate) fn help_device_wait(&self, number: u64, liveness: &dyn Liveness) {
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

    /// Records that a signal has finished, whatever its word will say later, if devices signal the
    /// event. The device of a killed process goes on for some milliseconds. It may still write a
    /// number that survivors have failed and passed, which sets the word back. Must be called for
    /// a device's signal when its queue finds it done; host signallers and survivors call it
    /// themselves.
    #[inline]
    pub(crate) fn record_finished(&self, number: u64) {
        if self.is_device_signalled() {
            self.finished[(number % RING) as usize].fetch_max(number, Ordering::AcqRel);
        }
    }

    /// Records on every word that all signals up to `latest` have finished.
    pub(super) fn record_finished_up_to(&self, latest: u64) {
        if self.is_device_signalled() {
            for number in (latest + 1).saturating_sub(RING)..=latest {
                self.record_finished(number);
            }
        }
    }

    /// Returns the recorded finished number of word `index`, if there is one and it is plausible.
    pub(super) fn finished_on(&self, index: u64) -> Option<u64> {
        let number = self.finished[index as usize].load(Ordering::Acquire);
        (number != 0 && number <= self.issued()).then_some(number)
    }

    /// Returns whether a device may write the signal now. Otherwise it must first wait until the
    /// word has reached `ticket.previous`.
    pub(crate) fn may_write(&self, ticket: Ticket) -> bool {
        let word = self.word(ticket.number).load(Ordering::Acquire);
        reached(sequence(word), u64::from(ticket.previous))
    }

    /// Tells waiters that devices signal this event and wake no sleeper. Must be called before the
    /// first such signal is submitted.
    #[inline]
    pub(crate) fn mark_device_signals(&self) {
        if self.flags.load(Ordering::Relaxed) & DEVICE_SIGNALS == 0 {
            self.set_device_signals();
        }
    }

    #[cold]
    fn set_device_signals(&self) {
        // Sequentially consistent with a sleeper that counts itself and then reads the flag: a
        // sleeper that does not see the flag is counted by now, and this wakes it to see the flag.
        self.flags.fetch_or(DEVICE_SIGNALS, Ordering::SeqCst);
        for word in &self.words {
            wake_sleepers(word, word.load(Ordering::SeqCst));
        }
    }

    /// Returns whether devices signal this event.
    #[inline]
    pub(super) fn is_device_signalled(&self) -> bool {
        self.flags.load(Ordering::SeqCst) & DEVICE_SIGNALS != 0
    }

    /// Tells submitters of dependent commands that signals of this event may fail although no
    /// process dies. Must be called before the first such signal's number is taken.
    #[inline]
    pub(crate) fn mark_fallible(&self) {
        if self.flags.load(Ordering::Relaxed) & MAY_FAIL == 0 {
            self.flags.fetch_or(MAY_FAIL, Ordering::Relaxed);
        }
    }

    /// Returns whether signals of this event may fail although no process dies.
    #[inline]
    pub(crate) fn is_fallible(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & MAY_FAIL != 0
    }
}
