//! How far a stream is.

use super::{Entry, Lane};
use crate::error::{Error, Result};
use crate::event_protocol::RING;
use crate::hal::cuda::driver;
use std::collections::VecDeque;
use std::sync::Weak;

impl Lane {
    /// Lets the device say when it is done with everything up to now.
    pub(super) fn end_part(&mut self) -> Result<()> {
        let mark = self.mark.wrapping_add(1);
        let (driver, word) = (self.gpu.driver(), self.progress.address());
        // SAFETY: a word of ours, aligned, that the lane keeps.
        unsafe { driver.write_word(self.stream, word, mark)? };
        self.mark = mark;
        self.backlog.end_part(mark);
        Ok(())
    }

    /// Lets go of what is done, as far as is known without asking the driver.
    #[inline]
    pub(crate) fn prune(&mut self) {
        let written = self.progress.read();
        while let Some(mut entry) = self.backlog.pop_done(written) {
            self.calls -= entry.calls;
            self.left.extend(entry.used.take());
            // Only the latest signal of a word counts, and looking at an event takes long.
            let next = self.backlog.peek_done(RING as usize - 1);
            if !next.is_some_and(|next| next.settles(&entry)) {
                entry.settle();
            }
        }
        self.rest();
    }

    /// Lets others know if nothing is under way.
    #[inline]
    pub(crate) fn rest(&self) {
        if self.backlog.is_empty() {
            self.waits.end();
        }
    }

    /// Whether everything is done that the device was asked to say so of, which from now on is
    /// everything up to now. Costs next to nothing.
    pub(crate) fn is_done(&mut self) -> bool {
        self.prune();
        if self.check_recording().is_err() {
            return false;
        }
        if self.backlog.is_open()
            && let Err(error) = self.end_part()
        {
            tracing::debug!(%error, "a stream's end is not marked");
        }
        let driver = self.gpu.driver();
        self.backlog.is_empty()
            && (!self.is_shared || matches!(driver.is_stream_done(self.stream), Ok(true)))
    }

    /// Whether everything is done. An error is that of the device or of the driver, for good.
    pub(crate) fn finish(&mut self) -> Result<bool> {
        self.prune();
        if self.backlog.is_empty() && (!self.is_shared || self.is_left) {
            return Ok(true);
        }
        let driver = self.gpu.driver();
        let is_done = match self.is_left {
            // Whether the device still works: any call says so.
            true => driver.free_memory().map(|_| false),
            false => self.is_recording().and_then(|is_recording| {
                if is_recording {
                    return Ok(false);
                }
                driver.is_stream_done(self.stream)
            }),
        };
        match is_done {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            // Nobody may ask now.
            Err(error) if driver::is_capturing(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
        self.backlog.end_all(|mut entry| {
            self.left.extend(entry.used.take());
            entry.settle();
        });
        self.calls = 0;
        self.clear_waits();
        self.rest();
        Ok(true)
    }

    /// Fails all that is under way: the device has stopped. What comes back may be the user's.
    pub(crate) fn abandon(&mut self, error: &Error) -> VecDeque<Entry> {
        self.calls = 0;
        self.clear_waits();
        let mut entries = self.backlog.take_all();
        self.rest();
        for entry in &mut entries {
            entry.fail(error);
        }
        entries
    }

    /// What it was to wait for was refused. If nothing is under way it waits for nothing.
    #[cold]
    pub(crate) fn wait_for_nothing_if_idle(&mut self) {
        if self.backlog.is_empty() {
            self.clear_waits();
            self.rest();
        }
    }

    fn clear_waits(&mut self) {
        self.waits.clear();
        self.latest_wait = (Weak::new(), 0);
    }
}
