//! Detects which commands of a stream have finished, and releases the objects that they used.

use super::QueueStream;
use crate::driver;
use crate::queue::in_flight::InFlight;
use crosshandle_events::RING;
use crosshandle_types::error::{Error, Result};
use std::collections::VecDeque;

impl QueueStream {
    /// Releases the commands that have finished according to the fences. Does not ask the driver.
    #[inline]
    pub(crate) fn prune(&mut self) {
        let written = self.progress.read();
        while let Some(mut command) = self.in_flight.pop_done(written) {
            self.calls -= command.calls;
            self.finished.extend(command.used.take());
            // Only the latest signal of a word matters, and access to an event is slow.
            let next = self.in_flight.peek_done(RING as usize - 1);
            if !next.is_some_and(|next| next.covers(&command)) {
                command.record_finished();
            }
        }
        self.end_if_idle();
    }

    /// Tells the scheduler that the stream is idle, if nothing is in flight.
    #[inline]
    pub(crate) fn end_if_idle(&self) {
        if self.in_flight.is_empty() {
            self.waits.end();
        }
    }

    /// Returns whether the device has reported that all work is finished. Makes the device write a
    /// fence after all commands submitted so far. This is cheap.
    pub(crate) fn is_done(&mut self) -> bool {
        self.prune();
        if self.check_recording().is_err() {
            return false;
        }
        if self.in_flight.is_open()
            && let Err(error) = self.write_fence()
        {
            tracing::debug!(%error, "a stream's end is not marked");
        }
        let driver = self.gpu.driver();
        self.in_flight.is_empty()
            && (!self.is_shared || matches!(driver.is_stream_done(self.stream), Ok(true)))
    }

    /// Returns whether all work is finished. An error means that the device or the driver has
    /// failed permanently.
    pub(crate) fn finish(&mut self) -> Result<bool> {
        self.prune();
        if self.in_flight.is_empty() && (!self.is_shared || self.is_abandoned) {
            return Ok(true);
        }
        match self.ask_driver() {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            // The driver does not allow queries during a capture.
            Err(error) if driver::is_capturing(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
        for mut command in self.take_in_flight() {
            self.finished.extend(command.used.take());
            command.record_finished();
        }
        Ok(true)
    }

    fn ask_driver(&self) -> Result<bool> {
        let driver = self.gpu.driver();
        if self.is_abandoned {
            // Any driver call shows whether the device still works.
            return driver.free_memory().map(|_| false);
        }
        Ok(!self.is_recording()? && driver.is_stream_done(self.stream)?)
    }

    /// Fails all commands in flight, because the device has stopped. The returned commands may have
    /// the last references to objects of the program.
    pub(crate) fn fail_all(&mut self, error: &Error) -> VecDeque<InFlight> {
        let mut commands = self.take_in_flight();
        for command in &mut commands {
            command.fail(error);
        }
        commands
    }

    fn take_in_flight(&mut self) -> VecDeque<InFlight> {
        self.calls = 0;
        let commands = self.in_flight.take_all();
        self.waits.end();
        commands
    }

    /// Clears the stream's waits if nothing is in flight. Called after the driver has refused them.
    #[cold]
    pub(crate) fn clear_waits_if_idle(&mut self) {
        if self.in_flight.is_empty() {
            self.waits.clear();
            self.waits.end();
        }
    }
}
