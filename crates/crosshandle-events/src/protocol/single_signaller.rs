//! Events that only device code of their creator signals.
//!
//! A kernel cannot take a number from `issued`, because GPUs have no atomic read-modify-write
//! operation with the host. Therefore the creator takes numbers ahead, and its device code stores
//! them into the words in order, one after the other. To all waiters they are pending numbers of
//! the creator: the words are exact, and survivors fail them when the creator dies.
//!
//! The device code is `crosshandle.cuh`, which knows the layout of a slot. It stores a whole word,
//! as a signalling host does, so it also clears the count of sleepers. That is safe, because
//! sleepers of such an event sleep in steps.

use super::signal::IssueError;
use super::slot::{DEVICE_SIGNALS, MAX_NUMBER, MAY_FAIL, Owner, SINGLE_SIGNALLER, Slot, WINDOW};
use crate::platform::{Atomic, Ordering, Platform};
use std::mem::offset_of;

impl<P: Platform> Slot<P> {
    /// The offsets of `issued`, `words`, `failed_from` and `failed_to` in a slot, which
    /// `crosshandle.cuh` uses.
    pub const DEVICE_OFFSETS: [usize; 4] = [
        offset_of!(Self, issued),
        offset_of!(Self, words),
        offset_of!(Self, failed_from),
        offset_of!(Self, failed_to),
    ];

    /// Makes the creator's device code the only signaller of a new event.
    pub fn make_single_signaller(&self, owner: Owner) {
        // Nothing has been submitted, so this cannot fail.
        let _ = self.take_ahead(owner);
        // Device code may fail any of its signals.
        let flags = SINGLE_SIGNALLER | DEVICE_SIGNALS | MAY_FAIL;
        self.flags.fetch_or(flags, Ordering::SeqCst);
    }

    /// Returns whether only device code of the event's creator signals.
    #[inline]
    pub fn is_single_signaller(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & SINGLE_SIGNALLER != 0
    }

    /// Takes as many numbers ahead as the words allow. The creator must call this before device
    /// code has used half of them.
    ///
    /// At the end of the numbers it takes no more. Device code then stops before it.
    ///
    /// # Errors
    /// The errors of taking a number for another owner.
    pub fn take_ahead(&self, owner: Owner) -> Result<(), IssueError> {
        loop {
            let current = self.load_issued();
            let wanted = (self.completed() + WINDOW).min(MAX_NUMBER);
            if wanted <= current.number() || self.take_number(current, wanted, owner)? {
                return Ok(());
            }
        }
    }

    /// Refuses hosts and queues as signallers, if only device code signals.
    #[inline]
    pub(super) fn check_signallers(&self) -> Result<(), IssueError> {
        match self.is_single_signaller() {
            true => Err(IssueError::SingleSignaller),
            false => Ok(()),
        }
    }
}
