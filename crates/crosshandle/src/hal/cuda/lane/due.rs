//! What a stream has to wait for.

use super::Lane;
use crate::error::{Error, Result};
use crate::hal::WaitPoint;
use smallvec::SmallVec;

/// What of a submission is left to wait for.
pub(crate) struct Due {
    /// Which of its waits the stream has to wait for.
    pub(super) waits: SmallVec<[u32; 4]>,
    /// What failed already.
    pub(crate) failed: Option<Error>,
}

impl Due {
    pub(crate) fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// Those waits, out of all of the submission.
    #[inline]
    pub(crate) fn of<'a>(&self, all: &'a [WaitPoint]) -> impl Iterator<Item = &'a WaitPoint> {
        self.waits.iter().map(|index| &all[*index as usize])
    }
}

impl Lane {
    /// What to wait for, and what has failed.
    #[inline]
    pub(crate) fn due(&self, waits: &[WaitPoint]) -> Result<Due> {
        let mut due = Due {
            waits: SmallVec::new(),
            failed: None,
        };
        for (index, wait) in waits.iter().enumerate() {
            match self.end_of(wait)? {
                None => due.waits.push(index as u32),
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    due.failed.get_or_insert(error);
                }
            }
        }
        Ok(due)
    }

    /// How a wait ends, if that is known before the stream has come to it.
    #[inline]
    pub(super) fn end_of(&self, wait: &WaitPoint) -> Result<Option<Result<()>>> {
        let (event, number) = (&wait.event, wait.number);
        if event.may_still_come(number) {
            return event.prepare_device_wait(number);
        }
        match event.result(number) {
            Some(result) => Ok(Some(result)),
            None if event.is_known_abandoned(number) => Ok(Some(Err(Error::PeerDied))),
            // Earlier in this stream.
            None if self.turns.contains(event, number) => Ok(Some(Ok(()))),
            None => event.prepare_device_wait(number),
        }
    }
}
