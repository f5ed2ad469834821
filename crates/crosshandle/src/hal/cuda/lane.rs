//! One stream of a queue, with what is under way in it.

mod bare;
mod due;
mod enqueue;
mod progress;

use super::backlog::Backlog;
use super::call::{Worker, text_of};
use super::device::Gpu;
use super::driver::{CudaEvent, EventHandle, Stream, StreamHandle, WordOp};
use super::entry::{Entry, Left, Used};
use super::held::Held;
use super::turns::Turns;
use super::waits::{Known, Wait, Waits};
use super::words::Word;
use super::work;
use crate::error::{Error, Result};
use crate::event_protocol::{RING, Ticket};
use crate::hal::{Submission, Work};
use crate::ipc::{EventCore, Profile};
use std::sync::{Arc, Weak};

pub(super) use due::Due;

/// How much sooner than a bare signal a command is let go of that keeps memory.
const HEAVY: u32 = 16;

/// Calls of the driver that a stream takes while it waits, at most: after some 1,020 the next one
/// returns when the stream goes on, and streams may share that number.
const MOST_CALLS: u32 = 256;
/// The same for functions of the host, with what comes after them: of those a stream takes 55, so
/// each counts as so many calls.
const CALLS_OF_A_FUNCTION: u32 = 32;

/// Calls of the driver around a command, at most: times, a signal that may have to wait for one
/// before it, and a mark.
const AROUND: u32 = 5;

/// A stream. In all methods the device's context is current.
pub(super) struct Lane {
    gpu: Arc<Gpu>,
    stream: StreamHandle,
    /// Unless the stream is somebody else's.
    own: Option<Stream>,
    /// Others submit to it too.
    is_shared: bool,
    /// Its maker may destroy it once what was submitted here is done.
    is_left: bool,
    /// Whether it goes back to the stock.
    is_of_stock: bool,
    backlog: Backlog<Entry>,
    /// Calls of the driver that the backlog took, at most.
    calls: u32,
    /// Where the device writes a mark after each part of the backlog, and the latest one.
    progress: Word,
    mark: u32,
    /// Where functions of the user let the stream go on, and the latest number for that.
    gate: Option<(Arc<Word>, u32)>,
    turns: Turns<EventCore>,
    /// What the stream waits for, and the latest of it.
    waits: Known,
    latest_wait: (Weak<EventCore>, u64),
    /// What the driver does not have yet of the command that is being submitted.
    ops: Vec<WordOp>,
    /// Notes for other lanes how far this one is, and whether anything came after that.
    join: Option<CudaEvent>,
    is_joined: bool,
    /// The latest barrier that this lane comes after.
    pub(super) barrier: u64,
    pub(super) left: Left,
}

impl Lane {
    /// A lane on a stream of the stock, which that gets back.
    pub(super) fn new(gpu: &Arc<Gpu>, stream: Stream) -> Result<Self> {
        let mut lane = Self::on(gpu, stream.handle(), Some(stream))?;
        lane.is_of_stock = true;
        Ok(lane)
    }

    /// A lane on a stream that is kept by `own` or by whoever made it.
    pub(super) fn on(gpu: &Arc<Gpu>, stream: StreamHandle, own: Option<Stream>) -> Result<Self> {
        let progress = Word::new(gpu)?;
        Ok(Self {
            gpu: Arc::clone(gpu),
            stream,
            own,
            is_shared: false,
            is_left: false,
            is_of_stock: false,
            backlog: Backlog::new(),
            calls: 0,
            mark: progress.read(),
            progress,
            gate: None,
            turns: Turns::new(),
            waits: Known::new(gpu.traffic()),
            latest_wait: (Weak::new(), 0),
            ops: Vec::new(),
            join: None,
            is_joined: true,
            barrier: 0,
            left: Left::new(),
        })
    }

    pub(super) fn stream(&self) -> StreamHandle {
        self.stream
    }

    /// The stream, to which others will submit too.
    pub(super) fn share(&mut self) -> StreamHandle {
        self.is_shared = true;
        self.stream
    }

    /// Nothing will be submitted here any more. If the stream is its maker's, he may destroy it when
    /// it is done: so the device is to say when that is, and the stream is not touched again.
    pub(super) fn leave(&mut self) {
        if self.own.is_none() && self.check_recording().is_ok() {
            self.is_left = !self.backlog.is_open() || self.end_part().is_ok();
        }
    }

    /// Whether somebody records what is submitted, which most questions about the stream spoil.
    fn is_recording(&self) -> Result<bool> {
        Ok(self.is_shared && self.gpu.driver().is_recording(self.stream)?)
    }

    /// Refuses to let a stream signal each time that somebody replays what he is recording.
    pub(super) fn check_recording(&self) -> Result<()> {
        if self.is_recording()? {
            return Err(Error::Unsupported(
                "this stream is being captured: what events and memory of other processes mean \
                 cannot be replayed"
                    .into(),
            ));
        }
        Ok(())
    }

    /// Whether commands may be kept back from it: from a stream of somebody else's not, who
    /// relies on their order among his own.
    pub(super) fn may_hold(&self) -> bool {
        self.own.is_some() && !self.is_shared
    }

    /// Whether nothing is under way, as far as is known without asking the driver.
    pub(super) fn is_idle(&self) -> bool {
        self.backlog.is_empty()
    }

    /// What the stream waits for.
    pub(super) fn waits(&self) -> &Waits {
        &self.waits
    }

    /// Whether the stream waits for something that has not happened, or calls a function, which
    /// may do the same.
    pub(super) fn is_blocked(&self) -> bool {
        self.waits.is_blocked()
    }

    /// Whether one more command would not hold up its caller while the stream waits.
    pub(super) fn has_room(&self, submission: &Submission, due: &Due) -> bool {
        self.calls == 0 || self.calls + calls_of(submission, due) <= MOST_CALLS
    }

    /// Submits a command, after `due` of it. `Ok` also if it is skipped, because what it waits for
    /// has failed.
    #[inline]
    pub(super) fn submit(&mut self, mut held: Held, due: Due, worker: &Arc<Worker>) -> Result<()> {
        if let Some(error) = due.failed {
            return held.skip(error, worker, &mut self.left);
        }
        self.is_joined = false;
        let mut entry = Entry {
            calls: calls_of(&held.submission, &due),
            ..Entry::default()
        };
        let submitted = self.enqueue(&mut held, &due, &mut entry, worker);
        if let (Err(error), Some(event)) = (&submitted, &held.submission.signal) {
            self.take_back(event, entry.ticket.take().or(held.ticket), error);
        }
        if !matches!(held.submission.work, Work::Marker) {
            // It did not come to that.
            self.left.push(Box::new(Used::new(held.submission.work)));
        }
        entry.signal = held.submission.signal;
        entry._waits = held.submission.waits;
        self.keep(entry, submitted)
    }

    /// The signal that the stream has to wait for so that one with this ticket, or the next one
    /// there is, comes after it.
    #[inline]
    pub(super) fn turn(&self, event: &Arc<EventCore>, ticket: Option<Ticket>) -> Option<Wait> {
        // Without looking at the event, which devices write to: that takes as long as all the rest.
        if ticket.is_none() && self.turns.has(event, RING) {
            return None;
        }
        let previous = event.unfinished_predecessor(ticket)?;
        let is_own = self.turns.contains(event, previous);
        (!is_own).then(|| Wait::Event(Arc::clone(event), previous))
    }

    /// Fails a signal that the driver did not take.
    #[cold]
    fn take_back(&mut self, event: &Arc<EventCore>, ticket: Option<Ticket>, error: &Error) {
        if let Some(ticket) = ticket {
            self.turns.forget(event);
            event.complete(ticket, Err(text_of(error.clone())));
        }
    }

    /// Keeps what a command uses until it is done. Also if something was refused: the rest may be
    /// under way.
    #[inline]
    fn keep(&mut self, entry: Entry, submitted: Result<Option<u32>>) -> Result<()> {
        self.calls += entry.calls;
        self.waits.begin_anyway();
        let weight = weight_of(&entry);
        self.backlog.push(entry, weight);
        match submitted {
            Ok(None) => Ok(()),
            Ok(Some(mark)) => {
                self.mark = mark;
                self.backlog.end_part(mark);
                Ok(())
            }
            Err(error) => {
                self.ops.clear();
                Err(error)
            }
        }
    }

    /// Lets whatever comes later in `other` come after all that is in this one.
    pub(super) fn join_into(&mut self, other: StreamHandle) -> Result<()> {
        if self.is_joined {
            return Ok(());
        }
        let event = self.note()?;
        self.gpu.driver().wait_for_event(other, event)?;
        self.is_joined = true;
        Ok(())
    }

    /// An event that happens when the stream is done with everything up to now.
    pub(super) fn note(&mut self) -> Result<EventHandle> {
        let driver = self.gpu.driver();
        let join = match &self.join {
            Some(join) => join,
            None => self.join.insert(driver.create_event(false)?),
        };
        driver.record_event(join.handle(), self.stream)?;
        Ok(join.handle())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // One that nobody else knows and in which nothing is under way; a stream that is destroyed
        // still runs what it has.
        if self.is_of_stock
            && self.may_hold()
            && self.backlog.is_empty()
            && let Some(stream) = self.own.take()
        {
            self.gpu.stock().put(stream);
        }
    }
}

/// Calls of the driver that a command takes, at most: its waits, its work, and what is around it.
fn calls_of(submission: &Submission, due: &Due) -> u32 {
    let function = match submission.work {
        Work::Call(_) => CALLS_OF_A_FUNCTION,
        _ if submission.may_fail && !due.is_empty() => CALLS_OF_A_FUNCTION,
        _ => 0,
    };
    due.waits.len() as u32 + work::calls(&submission.work) + function + AROUND
}

/// How soon a command's end shall be known. The more calls it took, the sooner: until then they
/// count, and the stream may seem to have no room.
fn weight_of(entry: &Entry) -> u32 {
    let least = if entry.used.is_some() { HEAVY } else { 1 };
    entry.calls.max(least)
}

pub(super) fn profile_of(signal: &Option<Arc<EventCore>>) -> Option<&Profile> {
    signal.as_ref()?.profile()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands that are done count until the mark of their part is written. A stream that gets
    /// them one by one must never seem to be full.
    #[test]
    fn parts_take_up_less_than_half_of_the_room() {
        for calls in 1..2 * CALLS_OF_A_FUNCTION {
            for is_heavy in [false, true] {
                let mut backlog = Backlog::new();
                let mut sum = 0;
                let mut is_due = false;
                while !is_due {
                    let used = is_heavy.then(|| Box::new(Used::new(Work::Marker)));
                    let entry = Entry {
                        calls,
                        used,
                        ..Entry::default()
                    };
                    let weight = weight_of(&entry);
                    is_due = backlog.is_mark_due(weight);
                    backlog.push(entry, weight);
                    sum += calls;
                }
                assert!(sum < MOST_CALLS / 2, "{sum} for {calls} each");
            }
        }
    }
}
