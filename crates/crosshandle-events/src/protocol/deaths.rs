//! Records of processes that ended with the event open. They end waits for signals that were never
//! submitted.
//!
//! Only the process that created the event learns of every death, and only that process writes
//! these bits. A waiter combines them with its knowledge of the processes that still have the event
//! open.

use super::slot::{ALONE, LATEST_DEATH, LATEST_DEATH_SHIFT, Owner, Slot};
use crate::platform::{Atomic, Ordering, Platform};

impl<P: Platform> Slot<P> {
    /// Records that `owner` ended with the event open.
    pub fn note_death(&self, owner: Owner) {
        let death = u32::from(owner.get()) << LATEST_DEATH_SHIFT;
        self.change_flags(|flags| flags & !LATEST_DEATH | death);
    }

    /// Clears the recorded death, because another process is about to get the event.
    #[inline]
    pub fn forget_deaths(&self) {
        if self.flags.load(Ordering::Relaxed) & LATEST_DEATH != 0 {
            self.change_flags(|flags| flags & !LATEST_DEATH);
        }
    }

    /// Returns the latest process that ended with the event open, or `None` if none did.
    #[inline]
    pub fn latest_death(&self) -> Option<Owner> {
        let death = self.flags.load(Ordering::Acquire) & LATEST_DEATH;
        Owner::new((death >> LATEST_DEATH_SHIFT) as u16)
    }

    /// Records that only one process has the event open, and that no other process can open it.
    pub fn mark_alone(&self) {
        self.flags.fetch_or(ALONE, Ordering::Release);
    }

    /// Returns whether the event has lost all other users for ever: a process ended with the event
    /// open, only one process still has it open, and no other process can open it any more.
    #[inline]
    pub fn is_left_alone(&self) -> bool {
        let flags = self.flags.load(Ordering::Acquire);
        flags & ALONE != 0 && flags & LATEST_DEATH != 0
    }

    fn change_flags(&self, change: impl Fn(u32) -> u32) {
        let mut flags = self.flags.load(Ordering::Relaxed);
        while let Err(seen) = self.flags.compare_exchange_weak(
            flags,
            change(flags),
            Ordering::AcqRel,
            Ordering::Relaxed,
        ) {
            flags = seen;
        }
    }
}
