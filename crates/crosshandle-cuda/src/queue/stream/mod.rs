//! One stream of a queue, with the commands in flight in it.

mod end;
mod submit;

use super::host_function::HostFence;
use super::in_flight::{Barrier, Finished, InFlight, InFlightList};
use super::own_signals::OwnSignals;
use crate::device::Gpu;
use crate::driver::{CudaEvent, EventHandle, Stream, StreamHandle, WordOp};
use crate::memory;
use crate::memory::process_word::ProcessWord;
use crate::scheduler::admission::{KnownWaits, StreamWaits, Wait};
use crosshandle_events::{RING, Ticket};
use crosshandle_hal::WaitPoint;
use crosshandle_ipc::{EventCore, Profile};
use crosshandle_types::error::{Error, Result};
use smallvec::SmallVec;
use std::sync::Arc;

/// The waits of a submission that are not over.
pub(super) struct Due {
    /// Indices of the waits for which the stream has to wait.
    pub(super) waits: SmallVec<[u32; 4]>,
    /// The error of a wait that has already failed.
    pub(super) failed: Option<Error>,
}

impl Due {
    pub(super) fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// Returns the waits themselves. `all` contains all waits of the submission.
    #[inline]
    pub(super) fn of<'a>(&self, all: &'a [WaitPoint]) -> impl Iterator<Item = &'a WaitPoint> {
        self.waits.iter().map(|index| &all[*index as usize])
    }
}

/// The event and the ticket that the host signals when a command has finished.
type HostSignal = Option<(Arc<EventCore>, Ticket)>;

/// One stream of a queue. The device's context is current during all methods.
pub(super) struct QueueStream {
    gpu: Arc<Gpu>,
    stream: StreamHandle,
    /// The stream, if this library owns it. `None` if it belongs to the program.
    own: Option<Stream>,
    /// Whether the program submits to the stream too.
    is_shared: bool,
    /// Whether the program may destroy the stream once the work submitted here has finished.
    is_abandoned: bool,
    /// Whether the stream returns to the pool.
    is_pooled: bool,
    in_flight: InFlightList<InFlight>,
    /// The maximum number of driver calls that the commands in flight took.
    calls: u32,
    /// The word to which the device writes a fence after each batch, and the latest fence.
    progress: ProcessWord,
    fence: u32,
    /// The word by which host functions let the stream continue, and its latest number.
    host_fence: Option<HostFence>,
    own_signals: OwnSignals<EventCore>,
    waits: KnownWaits,
    /// Operations on words of the current command that the driver does not have yet.
    ops: Vec<WordOp>,
    /// The event by which other streams wait for this one, and whether no command was submitted
    /// since they did.
    join: Option<CudaEvent>,
    is_joined: bool,
    /// The number of the latest barrier that this stream follows.
    pub(super) barrier: u64,
    /// Objects that finished commands used, until they are dropped without a lock.
    pub(super) finished: Finished,
}

impl QueueStream {
    /// Wraps a stream of the pool, which returns there on drop.
    pub(super) fn new(gpu: &Arc<Gpu>, stream: Stream) -> Result<Self> {
        let mut pooled = Self::on(gpu, stream.handle(), Some(stream))?;
        pooled.is_pooled = true;
        Ok(pooled)
    }

    /// Wraps a stream that `own` owns, or that the program keeps alive.
    pub(super) fn on(gpu: &Arc<Gpu>, stream: StreamHandle, own: Option<Stream>) -> Result<Self> {
        let progress = memory::take_word(gpu)?;
        Ok(Self {
            gpu: Arc::clone(gpu),
            stream,
            own,
            is_shared: false,
            is_abandoned: false,
            is_pooled: false,
            in_flight: InFlightList::new(),
            calls: 0,
            fence: progress.read(),
            progress,
            host_fence: None,
            own_signals: OwnSignals::new(),
            waits: KnownWaits::new(gpu.scheduler()),
            ops: Vec::new(),
            join: None,
            is_joined: true,
            barrier: 0,
            finished: Finished::new(),
        })
    }

    pub(super) fn handle(&self) -> StreamHandle {
        self.stream
    }

    /// Marks the stream as one to which the program submits too, and returns it.
    pub(super) fn share(&mut self) -> StreamHandle {
        self.is_shared = true;
        self.stream
    }

    /// Stops using a borrowed stream. The device writes a fence after the submitted work, and the
    /// stream is not used after that, because the program may then destroy it.
    pub(super) fn abandon_if_borrowed(&mut self) {
        if self.own.is_none() && self.check_recording().is_ok() {
            self.is_abandoned = !self.in_flight.is_open() || self.write_fence().is_ok();
        }
    }

    /// Returns whether the program records the stream in a graph. Most other queries would
    /// invalidate the recording.
    pub(super) fn is_recording(&self) -> Result<bool> {
        Ok(self.is_shared && self.gpu.driver().is_recording(self.stream)?)
    }

    /// Returns an error if the program records the stream. A recorded command would signal again at
    /// each replay.
    pub(super) fn check_recording(&self) -> Result<()> {
        if self.is_recording()? {
            return Err(Error::Unsupported(
                "this stream is being captured: this command cannot be recorded, because replays \
                 would signal and wait for stale numbers"
                    .into(),
            ));
        }
        Ok(())
    }

    /// Returns whether nothing is in flight according to the fences. Does not ask the driver.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(super) fn waits(&self) -> &StreamWaits {
        &self.waits
    }

    /// Returns whether the stream waits for a condition that has not happened, or calls a host
    /// function. A host function may wait too.
    pub(super) fn is_blocked(&self) -> bool {
        self.waits.is_blocked()
    }

    /// Returns the waits that are not over, and the error of a failed wait.
    #[inline]
    pub(super) fn due(&self, waits: &[WaitPoint]) -> Result<Due> {
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

    /// Returns the result of a wait if it is known before the stream reaches the wait.
    #[inline]
    fn end_of(&self, wait: &WaitPoint) -> Result<Option<Result<()>>> {
        let (event, number) = (&wait.event, wait.number);
        if event.may_still_come(number) {
            return event.prepare_device_wait(number);
        }
        match event.result(number) {
            Some(result) => Ok(Some(result)),
            None if event.is_known_abandoned(number) => Ok(Some(Err(event.abandoned(number)))),
            // This stream writes the signal before the command.
            None if self.own_signals.contains(event, number) => Ok(Some(Ok(()))),
            None => event.prepare_device_wait(number),
        }
    }

    /// Returns the earlier signal that the stream has to wait for before it signals with this
    /// ticket, or with the next ticket.
    #[inline]
    pub(super) fn predecessor(
        &self,
        event: &Arc<EventCore>,
        ticket: Option<Ticket>,
    ) -> Option<Wait> {
        // This avoids access to the event. Devices write to it, so one access takes as long as the
        // rest of a submission.
        if ticket.is_none() && self.own_signals.has(event, RING) {
            return None;
        }
        let previous = event.unfinished_predecessor(ticket)?;
        let is_own = self.own_signals.contains(event, previous);
        (!is_own).then(|| Wait::Event(Arc::clone(event), previous))
    }

    /// Makes later work in `other` follow all work in this stream.
    pub(super) fn join_into(&mut self, other: StreamHandle) -> Result<()> {
        if self.is_joined {
            return Ok(());
        }
        let event = self.record()?;
        self.gpu.driver().wait_for_event(other, event)?;
        self.is_joined = true;
        Ok(())
    }

    /// Makes later work in this stream follow a barrier.
    pub(super) fn come_after(&mut self, barrier: Option<&Barrier>) -> Result<()> {
        if let Some(barrier) = barrier
            && self.barrier < barrier.number
        {
            let driver = self.gpu.driver();
            driver.wait_for_event(self.stream, barrier.event.handle())?;
            self.barrier = barrier.number;
        }
        Ok(())
    }

    /// Returns an event that happens when the stream has finished all work submitted so far.
    pub(super) fn record(&mut self) -> Result<EventHandle> {
        let driver = self.gpu.driver();
        let join = match &self.join {
            Some(join) => join,
            None => self.join.insert(driver.create_event(false)?),
        };
        driver.record_event(join.handle(), self.stream)?;
        Ok(join.handle())
    }

    /// Describes what is in flight.
    pub(super) fn describe(&self) -> String {
        let is_done = self.gpu.driver().is_stream_done(self.stream);
        let (written, fence, calls) = (self.progress.read(), self.fence, self.calls);
        let waits = self.waits.describe();
        format!("done {is_done:?}, fence {written} of {fence}, {calls} calls, waits for {waits:?}")
    }

    /// Makes the device write a fence when it has finished all work submitted so far.
    fn write_fence(&mut self) -> Result<()> {
        let fence = self.fence.wrapping_add(1);
        let write = WordOp::Write(self.progress.address(), fence);
        // SAFETY: the word belongs to this process, is aligned, and is kept by the stream.
        unsafe { self.gpu.driver().word_ops(self.stream, &[write])? };
        self.fence = fence;
        self.in_flight.end_batch(fence);
        Ok(())
    }
}

impl Drop for QueueStream {
    fn drop(&mut self) {
        // Only a private stream without work in flight returns to the pool. A stream that is
        // destroyed still runs the work that it has.
        if self.is_pooled
            && !self.is_shared
            && self.in_flight.is_empty()
            && let Some(stream) = self.own.take()
        {
            self.gpu.pool().put(stream);
        }
    }
}

pub(super) fn profile_of(signal: &Option<Arc<EventCore>>) -> Option<&Profile> {
    signal.as_ref()?.profile()
}
