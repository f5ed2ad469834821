//! How the thread waits for the device, and sees that it waits in vain.

use super::Inner;
use crate::backend::Point;
use crate::backend::level_zero::driver::EventHandle;
use crate::backend::level_zero::entry::{is_broken, is_settled};
use crate::backend::level_zero::event;
use crate::backend::level_zero::pooled::Pooled;
use crate::error::Result;
use crate::sharing::EventCore;
use std::time::{Duration, Instant};

/// How long to wait for the device before having a look at the rest of the world.
const SLICE: Duration = Duration::from_millis(40);
/// After so many looks, a list that has not gone on although all has happened that it waits for, in
/// part by failing, will never do so.
const OVERDUE: u32 = 2;
/// How long to wait for the driver's own event before the list gets a mark.
const SHORT_WAIT: Duration = Duration::from_micros(50);

impl Inner {
    /// Whether the driver's own event soon tells of this number.
    pub(super) fn is_signalled(&self, event: &EventCore, number: u64) -> bool {
        let Some(companion) = event::to_signal(event, &self.core) else {
            return false;
        };
        let end = Instant::now() + SHORT_WAIT;
        loop {
            // Others would have it speak of their signal; and while they do, drivers don't expect
            // to be asked about it.
            let Some(held) = event.hold_companion(number) else {
                return false;
            };
            let asked = Pooled::wait_for(&self.core, companion, Duration::ZERO);
            drop(held);
            match asked {
                Ok(false) if Instant::now() < end => std::thread::yield_now(),
                asked => return matches!(asked, Ok(true)),
            }
        }
    }

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
    pub(super) fn wait_or_give_up(&self, mark: EventHandle, waits: &[Point]) -> Result<bool> {
        let mut overdue = 0;
        while !Pooled::wait_for(&self.core, mark, SLICE)? {
            for wait in waits {
                // Fails the signal of a process that died.
                wait.event.assist(wait.number);
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
