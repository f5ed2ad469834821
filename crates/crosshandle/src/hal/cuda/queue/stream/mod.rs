//! One stream of a queue, with the commands in flight in it.

mod end;
mod submit;

use super::host_function::HostFence;
use super::in_flight::{Finished, InFlight, InFlightList};
use super::own_signals::OwnSignals;
use crate::error::{Error, Result};
use crate::event_protocol::{RING, Ticket};
use crate::hal::WaitPoint;
use crate::hal::cuda::device::Gpu;
use crate::hal::cuda::driver::{CudaEvent, EventHandle, Stream, StreamHandle, WordOp};
use crate::hal::cuda::memory;
use crate::hal::cuda::memory::process_word::ProcessWord;
use crate::hal::cuda::scheduler::admission::{KnownWaits, StreamWaits, Wait};
use crate::ipc::{EventCore, Profile};
use smallvec::SmallVec;
use std::sync::Arc;

/// The waits of a submission that are not over.
pub(super) struct Due {
    /// Indices of the waits that the stream has to wait for.
    pub(super) waits: SmallVec<[u32; 4]>,
    /// The error of a wait that has failed already.
    pub(super) failed: Option<Error>,
}

impl Due {
    pub(super) fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// Returns the waits themselves, out of all waits of the submission.
    #[inline]
    pub(super) fn of<'a>(&self, all: &'a [WaitPoint]) -> impl Iterator<Item = &'a WaitPoint> {
        self.waits.iter().map(|index| &all[*index as usize])
    }
}

/// The event and the ticket that the host signals when a command is done.
type HostSignal = Option<(Arc<EventCore>, Ticket)>;

/// A stream. In all methods the device's context is current.
pub(super) struct QueueStream {
    gpu: Arc<Gpu>,
    stream: StreamHandle,
    /// Owns the stream, unless that is the program's.
    own: Option<Stream>,
    /// The program submits to it too.
    is_shared: bool,
    /// The stream's maker may destroy it once the work submitted here is done.
    is_abandoned: bool,
    /// The stream goes back to the pool.
    is_pooled: bool,
    in_flight: InFlightList<InFlight>,
    /// The most calls of the driver that the commands in flight took.
    calls: u32,
    /// The word to which the device writes a fence after each batch, and the latest fence.
    progress: ProcessWord,
    fence: u32,
    /// The word by which host functions let the stream go on, and its latest number.
    host_fence: Option<HostFence>,
    own_signals: OwnSignals<EventCore>,
    waits: KnownWaits,
    /// Operations of the command being submitted that the driver does not have yet.
    ops: Vec<WordOp>,
    /// An event that tells other streams how far this one is, and whether anything was submitted
    /// after it.
    join: Option<CudaEvent>,
    is_joined: bool,
    /// The latest barrier that this stream comes after.
    pub(super) barrier: u64,
    /// Objects that finished commands used, until they are dropped without a lock.
    pub(super) finished: Finished,
}

impl QueueStream {
    /// Wraps a stream of the pool, which gets it back.
    pub(super) fn new(gpu: &Arc<Gpu>, stream: Stream) -> Result<Self> {
        let mut pooled = Self::on(gpu, stream.handle(), Some(stream))?;
        pooled.is_pooled = true;
        Ok(pooled)
    }

    /// Wraps a stream that is kept by `own` or by its maker.
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

    /// Returns the stream, to which the program will submit too.
    pub(super) fn share(&mut self) -> StreamHandle {
        self.is_shared = true;
        self.stream
    }

    /// Ends submitting. The maker of a borrowed stream may destroy it when it is done: so the
    /// device writes a fence at that point, and the stream is not touched again.
    pub(super) fn abandon_if_borrowed(&mut self) {
        if self.own.is_none() && self.check_recording().is_ok() {
            self.is_abandoned = !self.in_flight.is_open() || self.write_fence().is_ok();
        }
    }

    /// Returns whether the program records the stream in a graph, which most questions about the
    /// stream would spoil.
    fn is_recording(&self) -> Result<bool> {
        Ok(self.is_shared && self.gpu.driver().is_recording(self.stream)?)
    }

    /// Refuses a stream that the program is recording: it would signal again at each replay.
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

    /// Returns whether nothing is in flight, as far as is known without asking the driver.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(super) fn waits(&self) -> &StreamWaits {
        &self.waits
    }

    /// Returns whether the stream waits for something that has not happened, or calls a host function,
    /// which may do the same.
    pub(super) fn is_blocked(&self) -> bool {
        self.waits.is_blocked()
    }

    /// Returns the waits that are not over, and the error of one that has failed.
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

    /// Returns the result of a wait, if it is known before the stream has come to it.
    #[inline]
    fn end_of(&self, wait: &WaitPoint) -> Result<Option<Result<()>>> {
        let (event, number) = (&wait.event, wait.number);
        if event.may_still_come(number) {
            return event.prepare_device_wait(number);
        }
        match event.result(number) {
            Some(result) => Ok(Some(result)),
            None if event.is_known_abandoned(number) => Ok(Some(Err(event.abandoned(number)))),
            // Earlier in this stream.
            None if self.own_signals.contains(event, number) => Ok(Some(Ok(()))),
            None => event.prepare_device_wait(number),
        }
    }

    /// Returns the earlier signal that the stream has to wait for before it signals with this
    /// ticket, or with the next one.
    #[inline]
    pub(super) fn predecessor(
        &self,
        event: &Arc<EventCore>,
        ticket: Option<Ticket>,
    ) -> Option<Wait> {
        // Without looking at the event, which devices write to: that takes as long as all the rest.
        if ticket.is_none() && self.own_signals.has(event, RING) {
            return None;
        }
        let previous = event.unfinished_predecessor(ticket)?;
        let is_own = self.own_signals.contains(event, previous);
        (!is_own).then(|| Wait::Event(Arc::clone(event), previous))
    }

    /// Makes later work in `other` come after all that is in this stream.
    pub(super) fn join_into(&mut self, other: StreamHandle) -> Result<()> {
        if self.is_joined {
            return Ok(());
        }
        let event = self.record()?;
        self.gpu.driver().wait_for_event(other, event)?;
        self.is_joined = true;
        Ok(())
    }

    /// Makes later work in this stream come after the latest barrier, given by its number and its
    /// event.
    pub(super) fn come_after(
        &mut self,
        number: u64,
        barrier: &Option<(EventHandle, Vec<Wait>)>,
    ) -> Result<()> {
        if self.barrier < number
            && let Some((event, _)) = barrier
        {
            self.gpu.driver().wait_for_event(self.stream, *event)?;
            self.barrier = number;
        }
        Ok(())
    }

    /// Returns an event that happens when the stream is done with everything up to now.
    pub(super) fn record(&mut self) -> Result<EventHandle> {
        let driver = self.gpu.driver();
        let join = match &self.join {
            Some(join) => join,
            None => self.join.insert(driver.create_event(false)?),
        };
        driver.record_event(join.handle(), self.stream)?;
        Ok(join.handle())
    }

    /// Lets the device say when it is done with everything up to now.
    fn write_fence(&mut self) -> Result<()> {
        let fence = self.fence.wrapping_add(1);
        let write = WordOp::Write(self.progress.address(), fence);
        // SAFETY: a word of this process, aligned, that the stream keeps.
        unsafe { self.gpu.driver().word_ops(self.stream, &[write])? };
        self.fence = fence;
        self.in_flight.end_batch(fence);
        Ok(())
    }
}

impl Drop for QueueStream {
    fn drop(&mut self) {
        // A stream that only this queue knows and in which nothing is in flight goes back; one that
        // is destroyed still runs what it has.
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
