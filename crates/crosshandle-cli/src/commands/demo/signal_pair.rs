//! The two events by which the processes alternate: each signals its own and waits for the other's.

use crate::failure::{ErrorContext as _, Failure, Result};
use crosshandle::Event;
use std::time::Duration;

/// This process's event and the other process's, with the number of signals of each so far.
pub(super) struct SignalPair<'a> {
    own: &'a Event,
    peers: &'a Event,
    /// Signals that this process has submitted.
    signals: u64,
    /// Signals of the other process that this process has waited for.
    waits: u64,
    /// Time that the other process may take to submit its next signal.
    timeout: Duration,
}

impl<'a> SignalPair<'a> {
    pub(super) fn new(own: &'a Event, peers: &'a Event, timeout: Duration) -> Self {
        Self {
            own,
            peers,
            signals: 0,
            waits: 0,
            timeout,
        }
    }

    /// Returns a pair that goes on counting, with another opening of the other process's event.
    pub(super) fn waiting_on<'b>(&self, peers: &'b Event) -> SignalPair<'b>
    where
        'a: 'b,
    {
        SignalPair { peers, ..*self }
    }

    /// Signals this process's event, and checks the number of the signal.
    #[inline]
    pub(super) fn signal_next(&mut self) -> Result<()> {
        self.signals += 1;
        let number = self.own.signal()?;
        if number == self.signals {
            return Ok(());
        }
        Err(Failure::error(format!(
            "verification failed: signal {} got number {number}",
            self.signals
        )))
    }

    /// Waits for the other process's next signal.
    #[inline]
    pub(super) fn wait_next(&mut self) -> Result<()> {
        self.waits += 1;
        self.peers
            .wait_value_timeout(self.waits, self.timeout)
            .context("waiting for the other process")
    }

    /// Returns how many signals of the other process this process has waited for.
    pub(super) fn waits(&self) -> u64 {
        self.waits
    }
}
