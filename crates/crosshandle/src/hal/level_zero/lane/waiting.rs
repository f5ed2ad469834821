//! How the thread waits for the device, and sees that it waits in vain.

use super::Inner;
use crate::error::Result;
use crate::hal::WaitPoint;
use crate::hal::level_zero::driver::EventHandle;
use crate::hal::level_zero::entry::{is_broken, is_settled};
use crate::hal::level_zero::pooled::Pooled;
use std::time::Duration;

/// How long to wait for the device before having a look at the rest of the world.
const SLICE: Duration = Duration::from_millis(40);
/// After so many looks, a list that has not gone on although all has happened that it waits for, in
/// part by failing, will never do so.
const OVERDUE: u32 = 2;

impl Inner {
    /// Whether the list has signalled a mark.
    pub(super) fn is_past(&self, mark: EventHandle) -> bool {
        matches!(Pooled::wait_for(&self.core, mark, Duration::ZERO), Ok(true))
    }

    /// Waits for a mark.
    pub(super) fn wait_for(&self, mark: EventHandle) -> Result<()> {
        while !Pooled::wait_for(&self.core, mark, SLICE)? {}
        Ok(())
    }

    /// Waits for a mark behind a wait for driver's events. `false` if that will never end.
    pub(super) fn wait_or_give_up(&self, mark: EventHandle, waits: &[WaitPoint]) -> Result<bool> {
        let mut overdue = 0;
        while !Pooled::wait_for(&self.core, mark, SLICE)? {
            for wait in waits {
                // Fails the signal of a process that died.
                wait.event.help_device_wait(wait.number);
            }
            if waits.iter().all(is_settled) && waits.iter().any(is_broken) {
                overdue += 1;
            }
            if overdue == OVERDUE {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
