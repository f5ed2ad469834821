//! The two events with which the processes take turns. Each process signals its own event and waits
//! for the other process's event.

use crate::failure::{ErrorContext as _, Failure, Result};
use crosshandle::Event;
use std::time::Duration;

/// The events of this process and of the other process, with the number of signals of each so far.
pub(super) struct SignalPair<'a> {
    own: &'a Event,
    peers: &'a Event,
    /// Number of signals that this process has submitted.
    signals: u64,
    /// Number of the other process's signals that this process has waited for.
    waits: u64,
    /// Maximum time until the other process submits its next signal.
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

    /// Returns a pair with the same counts that waits for `peers`, which is the other process's
    /// event, opened a second time.
    pub(super) fn waiting_on<'b>(&self, peers: &'b Event) -> SignalPair<'b>
    where
        'a: 'b,
    {
        SignalPair { peers, ..*self }
    }

    /// Signals this process's event, and checks the signal's number.
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

    /// Returns the number of the other process's signals that this process has waited for.
    pub(super) fn waits(&self) -> u64 {
        self.waits
    }
}
