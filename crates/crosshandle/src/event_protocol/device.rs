//! What devices need of an event.
//!
//! A device knows one operation each way: it writes the upper half of a word, and it waits until
//! the upper half of a word has reached a number. So whoever submits for it must see to the rest:
//! that the word is written at all ([`Slot::prepare_device_wait`]), that signals of one word are written in order
//! ([`Slot::may_write`]), and that waiters know that nobody wakes them ([`Slot::mark_device_signals`]).

use super::recovery::Liveness;
use super::signal::wake_sleepers;
use super::slot::{
    DEVICE_SIGNALS, Issued, MAY_FAIL, RING, Slot, WATCHED, at_number, reached, sequence,
};
use super::ticket::Ticket;
use super::wait::Outcome;
use crate::platform::{AtomicU64, Ordering};

/// How far ahead of its word a number may be that a device waits for. It compares lower halves,
/// which tell apart only numbers within 2³¹ of each other.
const REACH: i64 = 1 << 30;

/// What there is for a device to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeviceWait {
    /// The signal is finished: nothing.
    Finished,
    /// The signal's word reaches its number when it finishes.
    Ready,
    /// The signal is more than 2³⁰ ahead, which a device would take for the past.
    TooFarAhead,
}

impl Slot {
    /// The word of a signal. Devices use its upper half alone.
    pub(crate) fn word_of(&self, number: u64) -> &AtomicU64 {
        self.word(number)
    }

    /// Makes sure that a signal's word reaches its number when it finishes: a signal at once
    /// writes the words only if it knows that somebody looks at them.
    pub(crate) fn prepare_device_wait(&self, number: u64) -> DeviceWait {
        if self.is_armed(number) {
            return DeviceWait::Ready;
        }
        let index = number % RING;
        let word = self.word(number);
        loop {
            let issued = self.load_issued();
            if number <= issued.number() {
                // Words are exact for what is pending.
                return match self.outcome(number) {
                    Outcome::Pending => DeviceWait::Ready,
                    Outcome::Complete | Outcome::Failed(_) => DeviceWait::Finished,
                };
            }
            if issued.is_complete() {
                self.catch_up(index, word, issued, false);
            }
            let at = at_number(word.load(Ordering::Acquire), issued.number());
            if number as i64 - at > REACH {
                return DeviceWait::TooFarAhead;
            }
            // In this order: whoever finds the mark finds the number. Whoever took it away
            // before this finds neither, but puts the mark back if it finds the number.
            if self.armed.load(Ordering::SeqCst) < number {
                self.armed.fetch_max(number, Ordering::SeqCst);
            }
            if number > self.watch().number() {
                return DeviceWait::Ready;
            }
        }
    }

    /// Whether a device waits already for a signal that nobody has submitted.
    #[inline]
    fn is_armed(&self, number: u64) -> bool {
        // In this order, as above.
        if self.armed.load(Ordering::SeqCst) < number {
            return false;
        }
        let issued = Issued(self.issued.load(Ordering::SeqCst));
        if number <= issued.number() || !issued.is_watched() {
            return false;
        }
        let word = self.word(number).load(Ordering::Acquire);
        number as i64 - at_number(word, issued.number()) <= REACH
    }

    /// Sets the mark, unless it is set, and says what `issued` was before that. Other waits have
    /// set it, as a rule, and a device looks at the line.
    fn watch(&self) -> Issued {
        let issued = Issued(self.issued.load(Ordering::SeqCst));
        match issued.is_watched() {
            true => issued,
            false => Issued(self.issued.fetch_or(WATCHED, Ordering::SeqCst)),
        }
    }

    /// Whether a device that waits for a finished signal goes on: whoever signals at once writes the
    /// word a moment later, unless he is killed or stopped before.
    #[inline]
    pub(crate) fn is_written(&self, number: u64) -> bool {
        reached(sequence(self.word(number).load(Ordering::Acquire)), number)
    }

    /// Does what somebody left undone for a device that waits for `number`: failing the signal of
    /// a dead process, or writing the word of a signal at once before being killed or stopped. To
    /// be called now and then while the device waits.
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

    /// Remembers that a signal has finished, whatever its word will say, if devices signal the
    /// event. The device of a process that was killed goes on for some milliseconds, and may still
    /// write what others have taken for dead and gone past; its word goes back then. To be called
    /// for a device's signal when its queue finds it done; all other ways to finish do it
    /// themselves.
    #[inline]
    pub(crate) fn record_finished(&self, number: u64) {
        if self.is_device_signalled() {
            self.finished[(number % RING) as usize].fetch_max(number, Ordering::AcqRel);
        }
    }

    /// The same for everything up to `latest`.
    pub(super) fn record_finished_up_to(&self, latest: u64) {
        if self.is_device_signalled() {
            for number in (latest + 1).saturating_sub(RING)..=latest {
                self.record_finished(number);
            }
        }
    }

    /// A number of a word that has finished for certain, and that can be.
    pub(super) fn recorded_on(&self, index: u64) -> Option<u64> {
        let number = self.finished[index as usize].load(Ordering::Acquire);
        (number != 0 && number <= self.issued()).then_some(number)
    }

    /// Whether a signal may be written now. Otherwise its writer must first wait until the word
    /// has reached `ticket.previous`.
    pub(crate) fn may_write(&self, ticket: Ticket) -> bool {
        let word = self.word(ticket.number).load(Ordering::Acquire);
        reached(sequence(word), u64::from(ticket.previous))
    }

    /// Lets waiters know, before the first such signal is submitted, that devices signal this
    /// event: a device wakes nobody.
    #[inline]
    pub(crate) fn mark_device_signals(&self) {
        if self.marks.load(Ordering::Relaxed) & DEVICE_SIGNALS == 0 {
            self.mark_device_signals_first();
        }
    }

    #[cold]
    fn mark_device_signals_first(&self) {
        // Sequentially consistent with a sleeper that counts itself and then looks for the mark:
        // whoever doesn't see it is woken here, to see it then.
        self.marks.fetch_or(DEVICE_SIGNALS, Ordering::SeqCst);
        for word in &self.words {
            wake_sleepers(word, word.load(Ordering::SeqCst));
        }
    }

    /// Whether devices signal this event.
    #[inline]
    pub(super) fn is_device_signalled(&self) -> bool {
        self.marks.load(Ordering::SeqCst) & DEVICE_SIGNALS != 0
    }

    /// Lets those who wait know that signals of this event may fail although nobody dies.
    #[inline]
    pub(crate) fn mark_fallible(&self) {
        if self.marks.load(Ordering::Relaxed) & MAY_FAIL == 0 {
            self.marks.fetch_or(MAY_FAIL, Ordering::Relaxed);
        }
    }

    /// Whether they may. Known before the signal's number is.
    #[inline]
    pub(crate) fn is_fallible(&self) -> bool {
        self.marks.load(Ordering::Relaxed) & MAY_FAIL != 0
    }
}
