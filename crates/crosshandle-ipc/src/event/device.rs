//! Methods of an event for queues of devices.
//!
//! A device waits for and writes the upper halves of the words of an event's slot. The queue does
//! the rest with these methods, in this order:
//!
//! - For a wait, it calls [`prepare_device_wait`](EventCore::prepare_device_wait), and then
//!   [`word`](EventCore::word) for the device.
//! - For a signal, it calls [`mark_device_signals`](EventCore::mark_device_signals) and
//!   [`issue`](EventCore::issue). Unless the signal [may be written](EventCore::may_write) now, the
//!   device first waits for the previous number of the word. Then it writes. When the device has
//!   written, the queue calls [`finish_device_signal`](EventCore::finish_device_signal).
//!
//! An event must stay open until the device no longer uses it.

use super::EventCore;
use crate::event_arena::BackendPinner;
use crosshandle_events::{
    DeviceWait, FailureReason, IssueError, MAX_SURVIVOR_ROUNDS, Outcome, Owner, RING, Ticket,
    WINDOW,
};
use crosshandle_types::error::{Error, Result};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Offset in bytes of the half that devices use, from the start of a word.
const UPPER_HALF: usize = if cfg!(target_endian = "little") { 4 } else { 0 };

impl EventCore {
    /// Returns the address of the half word that devices use for a signal. From now on, devices of
    /// `pinner` can access it while the event is open.
    #[inline]
    pub fn word(&self, number: u64, pinner: &impl BackendPinner) -> Result<usize> {
        self.pin(pinner)?;
        let word = self.slot().word_of(number);
        Ok(ptr::from_ref(word).expose_provenance() + UPPER_HALF)
    }

    /// Gives the devices of `pinner` access to all words of the event.
    #[inline]
    pub fn pin(&self, pinner: &impl BackendPinner) -> Result<()> {
        let bit = 1 << pinner.kind() as u32;
        if self.pinned.load(Ordering::Acquire) & bit != 0 {
            return Ok(());
        }
        self.pin_first(bit, pinner)
    }

    #[cold]
    fn pin_first(&self, bit: u32, pinner: &dyn BackendPinner) -> Result<()> {
        self.arena().pin(self.slot(), pinner)?;
        self.pinned.fetch_or(bit, Ordering::Release);
        Ok(())
    }

    /// Prepares a device's wait for a signal. After this call, the completion word is sure to reach
    /// the signal's number when the signal finishes. If the signal has already finished, returns
    /// its result instead.
    pub fn prepare_device_wait(&self, number: u64) -> Result<Option<Result<()>>> {
        match self.slot().prepare_device_wait(number) {
            DeviceWait::Ready => Ok(None),
            DeviceWait::Finished => Ok(self.result(number)),
            DeviceWait::TooFarAhead => Err(Error::invalid(format!(
                "a device can't wait for signal {number} yet: it is more than 2^30 ahead"
            ))),
        }
    }

    /// Returns whether a process may still submit a signal. The signal is not submitted yet, and
    /// the event's creator is not known to have ended.
    #[inline]
    pub fn may_still_come(&self, number: u64) -> bool {
        number > self.issued() && !self.liveness().is_known_abandoned()
    }

    /// Returns the address of the event's slot for code on a device, which `crosshandle.cuh`
    /// describes. From now on, devices of `pinner` can access the slot while the event is open.
    pub fn slot_address(&self, pinner: Option<&dyn BackendPinner>) -> Result<usize> {
        if let Some(pinner) = pinner {
            let bit = 1 << pinner.kind() as u32;
            if self.pinned.load(Ordering::Acquire) & bit == 0 {
                self.pin_first(bit, pinner)?;
            }
        }
        Ok(ptr::from_ref(self.slot()).expose_provenance())
    }

    /// Returns whether only device code of the event's creator signals.
    #[inline]
    pub fn is_single_signaller(&self) -> bool {
        self.is_single_signaller
    }

    /// Does for code on a device what only the host can do: keeps numbers ahead of the code's own
    /// signals, ensures that the words of awaited numbers are written, and fails the signals of
    /// dead processes. Returns whether a process that should signal has ended.
    ///
    /// `ensured` is the number up to which words are sure to be written, and is updated. Must be
    /// called at intervals while code on a device uses the event.
    pub fn help_device_code(self: &Arc<Self>, ensured: &mut u64) -> bool {
        let slot = self.slot();
        if self.is_single_signaller() {
            if self.is_creator() {
                // Fails only at the end of the numbers.
                let _ = slot.take_ahead(self.owner());
            }
        } else {
            let issued = slot.issued();
            // All of these numbers are within the reach of a comparison.
            if issued + WINDOW / 2 > *ensured {
                match slot.prepare_device_wait(issued + WINDOW) {
                    DeviceWait::TooFarAhead => {}
                    DeviceWait::Ready | DeviceWait::Finished => *ensured = issued + WINDOW,
                }
            }
            // The creator may still make a handle for another process.
            if !self.is_creator() && self.is_abandoned(issued + 1) {
                self.fail_up_to(*ensured);
            }
        }
        let first = slot.issued().max(RING) + 1 - RING;
        for number in first..first + RING {
            slot.help_device_wait(number, self.liveness());
        }
        self.has_lost_peer()
    }

    /// Returns whether the event's creator, or a process that had the event open, is known to have
    /// ended.
    fn has_lost_peer(&self) -> bool {
        match self.is_creator() {
            true => self.slot().latest_death().is_some(),
            false => self.liveness().is_known_orphan(),
        }
    }

    /// Records for waiters that devices will signal this event.
    #[inline]
    pub fn mark_device_signals(&self) {
        self.slot().mark_device_signals();
    }

    /// Returns the unfinished signal that must finish before the signal of this ticket. `None`
    /// stands for the ticket that is issued next.
    #[inline]
    pub fn unfinished_predecessor(&self, ticket: Option<Ticket>) -> Option<u64> {
        let previous = match ticket {
            Some(ticket) => ticket.previous_number(),
            None => (self.issued() + 1).checked_sub(RING),
        };
        previous.filter(|previous| *previous > 0 && !self.is_finished(*previous))
    }

    /// Returns whether a device may write a signal's number, because its word has reached the
    /// number before.
    #[inline]
    pub fn may_write(&self, ticket: Ticket) -> bool {
        self.slot().may_write(ticket)
    }

    /// Records that a device has written a signal, and ensures that the signal's word shows it.
    pub fn finish_device_signal(&self, number: u64) {
        self.slot().record_finished(number);
        if !self.is_finished(number) {
            self.slot().help_device_wait(number, self.liveness());
        }
        self.finish_due_after(number);
    }

    /// Does the work that other processes left undone for a device that waits for `number` (see
    /// `Slot::help_device_wait`). If the event's creator has ended before it submitted the signal,
    /// takes and fails the number. Must be called at intervals, so that the device does not wait
    /// forever.
    pub fn help_device_wait(self: &Arc<Self>, number: u64) {
        if number <= self.issued() {
            self.slot().help_device_wait(number, self.liveness());
        } else if self.is_abandoned(number) {
            self.fail_up_to(number);
        }
    }

    /// Returns whether a signal will never be submitted, because the event's creator has ended. May
    /// make a system call.
    pub fn is_abandoned(&self, number: u64) -> bool {
        number > self.issued() && self.liveness().is_abandoned() && number > self.issued()
    }

    /// Returns whether a number is known to be [abandoned](Self::is_abandoned), without a system
    /// call.
    pub fn is_known_abandoned(&self, number: u64) -> bool {
        self.liveness().is_known_abandoned() && number > self.issued()
    }

    /// Returns whether a device that waits for this signal can resume, because the completion word
    /// shows the signal as finished. If the signal has finished but the word does not show it,
    /// [`help_device_wait`](Self::help_device_wait) writes the word.
    #[inline]
    pub fn releases_device(&self, number: u64) -> bool {
        self.is_finished(number) && self.slot().is_written(number)
    }

    /// Returns whether a signal has finished, successfully or not.
    #[inline]
    pub fn is_finished(&self, number: u64) -> bool {
        self.slot().outcome(number) != Outcome::Pending
    }

    /// Takes and fails all numbers up to `number`. Another process can change the shared numbers
    /// again and again, so the next call continues after some rounds.
    fn fail_up_to(self: &Arc<Self>, number: u64) {
        let mut next = number;
        for _ in 0..MAX_SURVIVOR_ROUNDS {
            if self.issued() >= number {
                return;
            }
            match self.slot().take_up_to(self.owner(), next) {
                Ok(tickets) => {
                    for ticket in tickets {
                        let creator_died = FailureReason::OwnerDied(Some(Owner::EXPORTER));
                        self.finish(ticket, Some(creator_died));
                    }
                    next = number;
                }
                Err(IssueError::TooFarAhead(limit)) if limit > self.issued() => next = limit,
                // Another process was faster, or must first finish another signal. The next call
                // will succeed.
                Err(_) => return,
            }
        }
    }

    /// Records that signals of this event may fail although no process ends. Must be called before
    /// they are submitted.
    #[inline]
    pub fn mark_fallible(&self) {
        self.slot().mark_fallible();
    }

    /// Returns whether signals may fail although no process ends.
    #[inline]
    pub fn is_fallible(&self) -> bool {
        self.slot().is_fallible()
    }
}

#[cfg(test)]
mod tests {
    use crate::platform::Slot;
    use crosshandle_events::{IssueError, Owner};

    /// Kernels may fail any signal, so streams must check each one. A hostile process can set the
    /// flag that refuses other signallers, but it does not stop a survivor.
    #[test]
    fn signals_are_fallible_and_survivors_take_their_numbers() {
        let slot = Slot::new();
        slot.make_single_signaller(Owner::EXPORTER);
        assert!(slot.is_fallible());
        let last = slot.issued();
        let refused = slot.issue_up_to(Owner::EXPORTER, last + 1);
        assert_eq!(refused.err(), Some(IssueError::SingleSignaller));
        let taken = slot.take_up_to(Owner::EXPORTER, last + 1);
        assert_eq!(taken.err(), Some(IssueError::TooFarAhead(last)));
    }
}
