//! Alternation of the two sides: each signals its own event and waits for the other's.

use crate::failure::{Context, Failure, Result};
use crosshandle::Event;
use std::time::Duration;

/// One side of the alternation, with its count of signals.
pub(super) struct Turns<'a> {
    mine: &'a Event,
    theirs: &'a Event,
    passed: u64,
    taken: u64,
    time_limit: Duration,
}

impl<'a> Turns<'a> {
    pub(super) fn new(mine: &'a Event, theirs: &'a Event, time_limit: Duration) -> Self {
        Self {
            mine,
            theirs,
            passed: 0,
            taken: 0,
            time_limit,
        }
    }

    /// Returns the same alternation over another opening of the other side's event.
    pub(super) fn waiting_on<'b>(&self, theirs: &'b Event) -> Turns<'b>
    where
        'a: 'b,
    {
        Turns { theirs, ..*self }
    }

    /// Signals that it is the other side's turn.
    #[inline]
    pub(super) fn pass(&mut self) -> Result<()> {
        self.passed += 1;
        let number = self.mine.signal()?;
        if number == self.passed {
            return Ok(());
        }
        Err(Failure::error(format!(
            "verification failed: signal {} got number {number}",
            self.passed
        )))
    }

    /// Waits until it is this side's turn.
    #[inline]
    pub(super) fn take(&mut self) -> Result<()> {
        self.taken += 1;
        self.theirs
            .wait_value_timeout(self.taken, self.time_limit)
            .context("waiting for the other process")
    }

    /// Returns the number of signals that this side has waited for.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }
}
