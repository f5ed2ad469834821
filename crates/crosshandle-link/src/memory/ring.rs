//! A ring of host memory through which device memory is transferred. While the link transfers one
//! part, a queue copies other parts.

use super::transfer::{Part, Places};
use crate::error::Result;
use crate::link::data::Direction;
use crate::link::stage::host_memory;
use crate::tuning::{STAGING_PART, STAGING_PARTS, STAGING_TIMEOUT};
use crosshandle::{Command, Context, Event, EventOptions, Memory, MemoryRange, Queue};

/// Host memory for [`STAGING_PARTS`] parts, and the queue that copies to and from it.
pub(crate) struct Ring {
    buffer: Memory,
    queue: Queue,
    /// The event that each copy signals.
    copied: Event,
}

impl Ring {
    pub(super) fn new(context: &Context) -> Result<Self> {
        Ok(Self {
            buffer: host_memory(context, STAGING_PARTS * STAGING_PART)?,
            queue: context.create_queue()?,
            copied: context.create_event_with(EventOptions::new().shareable(false))?,
        })
    }
}

/// One transfer through a ring.
pub(super) struct Rounds<'a> {
    ring: &'a Ring,
    direction: Direction,
    own: MemoryRange,
    /// Number of signals that `copied` had before this transfer.
    first: u64,
    /// Number of copies that this transfer has started.
    begun: usize,
}

impl<'a> Rounds<'a> {
    pub(super) fn new(ring: &'a Ring, direction: Direction, own: MemoryRange) -> Self {
        Self {
            first: ring.copied.submitted(),
            ring,
            direction,
            own,
            begun: 0,
        }
    }

    /// Starts to copy a part of the local memory into its place in the ring (for `Put`), or from
    /// that place (for `Get`).
    fn copy(&mut self, index: usize, start: usize, len: usize) -> Result<()> {
        let place = index % STAGING_PARTS * STAGING_PART;
        let place = self.ring.buffer.range(place..place + len)?;
        let own = self.own.range(start..start + len)?;
        let command = match self.direction {
            Direction::Put => Command::copy(own, place)?,
            Direction::Get => Command::copy(place, own)?,
        };
        self.ring.queue.submit(command.signal(&self.ring.copied))?;
        self.begun += 1;
        Ok(())
    }

    /// Waits until the copy of part `index` has completed.
    fn wait(&self, index: usize) -> Result<()> {
        let number = self.first + index as u64 + 1;
        Ok(self
            .ring
            .copied
            .wait_value_timeout(number, STAGING_TIMEOUT)?)
    }

    /// Waits until all copies of this transfer have completed.
    ///
    /// # Errors
    /// Returns an error if a copy has failed or has timed out. Such a copy may still access the
    /// ring later, so the ring must not be used again.
    pub(super) fn finish(self) -> Result<()> {
        Ok(self.ring.queue.finish_timeout(STAGING_TIMEOUT)?)
    }
}

impl Places for Rounds<'_> {
    fn prepare(&mut self, part: Part) -> Result<*mut u8> {
        match self.direction {
            Direction::Put => {
                // The previous parts were transferred, so their places are free for further copies.
                let part_len = self.part_len(&part);
                while self.begun < part.index + STAGING_PARTS {
                    let start = self.begun * part_len;
                    if start >= self.own.len() {
                        break;
                    }
                    self.copy(self.begun, start, part_len.min(self.own.len() - start))?;
                }
                self.wait(part.index)?;
            }
            Direction::Get => {
                // Wait until the previous part in this place was copied out.
                if let Some(before) = part.index.checked_sub(STAGING_PARTS) {
                    self.wait(before)?;
                }
            }
        }
        let place = part.index % STAGING_PARTS * STAGING_PART;
        Ok(self.ring.buffer.as_ptr().wrapping_add(place))
    }

    fn moved(&mut self, part: Part) -> Result<()> {
        match self.direction {
            Direction::Put => Ok(()),
            Direction::Get => self.copy(part.index, part.start, part.len),
        }
    }
}

impl Rounds<'_> {
    /// Returns the length of a transfer's parts. All parts except the last have this length.
    fn part_len(&self, part: &Part) -> usize {
        match part.index {
            0 => part.len,
            index => part.start / index,
        }
    }
}
