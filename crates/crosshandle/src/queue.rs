//! Queues: commands run in order, beside the host.

use crate::backend::{BackendQueue, Point, QueueOrder, Submission, Work};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::memory::MemoryRange;
use crate::sharing::EventCore;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs commands on a device. Any thread may submit; dropping it lets what was submitted run on.
pub struct Queue {
    inner: Box<dyn BackendQueue>,
    order: QueueOrder,
}

/// What a queue shall do, after which events, and which event that signals.
#[must_use = "a command does nothing until it is submitted"]
pub struct Command {
    work: Work,
    is_barrier: bool,
    waits: Vec<(Arc<EventCore>, Option<u64>)>,
    signal: Option<Arc<EventCore>>,
}

impl Command {
    fn new(work: Work) -> Self {
        Self {
            work,
            is_barrier: false,
            waits: Vec::new(),
            signal: None,
        }
    }

    /// Copies a range to another one of the same length. They may overlap.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for different lengths, [`Error::ReadOnly`] for a destination
    /// opened read-only.
    pub fn copy(to: MemoryRange, from: MemoryRange) -> Result<Self> {
        to.check_writable()?;
        if to.len() != from.len() {
            return Err(Error::invalid(format!(
                "a copy needs two ranges of one length, but got {} and {} bytes",
                to.len(),
                from.len()
            )));
        }
        let len = to.len();
        Ok(Self::new(Work::Copy {
            to: to.into_place(),
            from: from.into_place(),
            len,
        }))
    }

    /// Copies `rows` rows of `width` bytes; they start every `pitch` bytes in each range.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a pitch is less than the width or rows lie outside;
    /// [`Error::ReadOnly`] for a destination opened read-only.
    pub fn copy_2d(
        to: MemoryRange,
        to_pitch: usize,
        from: MemoryRange,
        from_pitch: usize,
        width: usize,
        rows: usize,
    ) -> Result<Self> {
        to.check_writable()?;
        for (what, range, pitch) in [
            ("destination", &to, to_pitch),
            ("source", &from, from_pitch),
        ] {
            let end = rows
                .saturating_sub(1)
                .checked_mul(pitch)
                .and_then(|start| start.checked_add(width));
            let inside = rows == 0 || end.is_some_and(|end| end <= range.len());
            if pitch < width || !inside {
                return Err(Error::invalid(format!(
                    "{rows} rows of {width} bytes every {pitch} bytes are not inside the {what} \
                     of {} bytes",
                    range.len()
                )));
            }
        }
        let rows = if width == 0 { 0 } else { rows };
        Ok(Self::new(Work::Copy2d {
            to: to.into_place(),
            to_pitch,
            from: from.into_place(),
            from_pitch,
            width,
            rows,
        }))
    }

    /// Repeats a pattern of any length over a range.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an empty pattern or a range that is not a whole number of
    /// patterns; [`Error::ReadOnly`] for a range opened read-only.
    pub fn fill(to: MemoryRange, pattern: &[u8]) -> Result<Self> {
        to.check_writable()?;
        if pattern.is_empty() || !to.len().is_multiple_of(pattern.len()) {
            return Err(Error::invalid(format!(
                "{} bytes are not a whole number of patterns of {} bytes",
                to.len(),
                pattern.len()
            )));
        }
        Ok(Self::new(Work::Fill {
            len: to.len(),
            to: to.into_place(),
            pattern: pattern.into(),
        }))
    }

    /// Calls a function on a thread of the queue. Its error or panic fails the command.
    pub fn call<F, E>(function: F) -> Self
    where
        F: FnOnce() -> std::result::Result<(), E> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Self::new(Work::Call(Box::new(move || function().map_err(Into::into))))
    }

    /// Does nothing, after what was submitted before; what is submitted later comes after it. For
    /// waiting and signalling in the order of a queue.
    pub fn barrier() -> Self {
        Self {
            is_barrier: true,
            ..Self::new(Work::Nothing)
        }
    }

    /// Lets it start after the signal of `event` that is the latest when the command is submitted.
    pub fn after(mut self, event: &Event) -> Self {
        self.waits.push((Arc::clone(event.core()), None));
        self
    }

    /// Lets it start after signal `value` of `event`, which may not have been submitted yet.
    pub fn after_value(mut self, event: &Event, value: u64) -> Self {
        self.waits.push((Arc::clone(event.core()), Some(value)));
        self
    }

    /// Signals `event` when it is done. The signal counts as submitted with the command.
    pub fn signal(mut self, event: &Event) -> Self {
        self.signal = Some(Arc::clone(event.core()));
        self
    }
}

impl Queue {
    pub(crate) fn new(inner: Box<dyn BackendQueue>, order: QueueOrder) -> Self {
        Self { inner, order }
    }

    /// In which order it runs commands.
    pub fn order(&self) -> QueueOrder {
        self.order
    }

    /// Submits a command.
    ///
    /// # Errors
    /// What the driver or the system refuses at once. A command that fails later fails the event
    /// it signals; without one, [`finish`](Self::finish) says so.
    pub fn submit(&self, command: Command) -> Result<()> {
        let waits: Vec<Point> = command
            .waits
            .iter()
            .filter_map(|(event, value)| Event::point(event, *value))
            .collect();
        self.inner.submit(Submission {
            work: command.work,
            is_barrier: command.is_barrier,
            waits,
            signal: command.signal,
        })
    }

    /// Signals an event after everything submitted before.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn signal(&self, event: &Event) -> Result<()> {
        self.submit(Command::barrier().signal(event))
    }

    /// Lets everything submitted later wait for an event's latest signal.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.submit(Command::barrier().after(event))
    }

    /// Makes sure that what was submitted will run without further calls.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    /// Waits until everything submitted is done.
    ///
    /// # Errors
    /// Once, the first error of a command that signals no event.
    pub fn finish(&self) -> Result<()> {
        self.inner.finish(None)
    }

    /// Waits until everything submitted is done, for at most `timeout`.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; as [`finish`](Self::finish).
    pub fn finish_timeout(&self, timeout: Duration) -> Result<()> {
        self.inner.finish(Instant::now().checked_add(timeout))
    }

    /// Whether everything submitted is done.
    pub fn is_idle(&self) -> bool {
        self.inner.is_idle()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("order", &self.order)
            .field("is_idle", &self.is_idle())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("waits", &self.waits.len())
            .field("signals", &self.signal.is_some())
            .finish_non_exhaustive()
    }
}
