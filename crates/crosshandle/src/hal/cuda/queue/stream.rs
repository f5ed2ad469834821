//! One stream of a queue, with the commands in flight in it: here waits, work and signals become
//! calls of the driver.

use super::host_function::{self, HostFence, HostFunctions, Job, Task};
use super::in_flight::{Finished, InFlight, InFlightList, Pending, Used, issue};
use super::own_signals::OwnSignals;
use super::work::{self, Extra};
use crate::error::{Error, Result};
use crate::event_protocol::{RING, Ticket};
use crate::hal::common::user_code::failure_text;
use crate::hal::cuda::device::{CommandTimes, Gpu};
use crate::hal::cuda::driver::{
    self, CudaEvent, DeviceAddress, EventHandle, Stream, StreamHandle, WordOp,
};
use crate::hal::cuda::memory;
use crate::hal::cuda::memory::process_word::ProcessWord;
use crate::hal::cuda::scheduler::admission::{KnownWaits, StreamWaits, Wait};
use crate::hal::cuda::tuning::{HOST_FUNCTION_CALLS, MEMORY_WEIGHT, STREAM_MAX_CALLS};
use crate::hal::{Submission, WaitPoint, Work};
use crate::ipc::{EventCore, Profile};
use crate::threads::background;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::mem;
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

    /// Returns whether one more command would not hold up its submitter while the stream waits.
    pub(super) fn has_room(&self, submission: &Submission, due: &Due) -> bool {
        // Besides those of the command, a wait for another stream's signal and a fence.
        self.calls == 0 || self.calls + calls_of(submission, due) + 2 <= STREAM_MAX_CALLS
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

    /// Hands a command to the driver, after the waits that are due, and keeps the objects that it
    /// uses until it is done. They are kept also if the driver refused a part, since the rest may
    /// be in flight.
    pub(super) fn submit(
        &mut self,
        pending: &mut Pending,
        due: &Due,
        functions: &Arc<HostFunctions>,
    ) -> Result<()> {
        self.is_joined = false;
        let mut command = InFlight {
            calls: calls_of(&pending.submission, due),
            ..InFlight::default()
        };
        let submitted = self.enqueue(pending, due, &mut command, functions);
        let submission = &mut pending.submission;
        if let (Err(error), Some(event)) = (&submitted, &submission.signal)
            && let Some(ticket) = command.ticket.take().or(pending.ticket)
        {
            self.own_signals.forget(event);
            event.complete(ticket, Err(failure_text(error.clone())));
        }
        if !matches!(submission.work, Work::Marker) {
            // It did not come to that.
            let (work, extra) = (
                mem::take(&mut submission.work),
                mem::take(&mut pending.extra),
            );
            self.finished.push(Box::new(Used::new(work, extra)));
        }
        command.signal = submission.signal.take();
        command._waits = mem::take(&mut submission.waits);
        self.waits.begin_anyway();
        let weight = weight_of(&command);
        if matches!(submitted, Ok(Some(_))) {
            command.calls += 1;
        }
        self.calls += command.calls;
        self.in_flight.push(command, weight);
        if let Some(fence) = submitted.inspect_err(|_| self.ops.clear())? {
            self.fence = fence;
            self.in_flight.end_batch(fence);
        }
        Ok(())
    }

    /// Hands a command to the driver, and then a fence, if it is time for one.
    fn enqueue(
        &mut self,
        pending: &mut Pending,
        due: &Due,
        command: &mut InFlight,
        functions: &Arc<HostFunctions>,
    ) -> Result<Option<u32>> {
        let Pending {
            submission,
            extra,
            ticket,
        } = pending;
        let (signal, waits) = (&submission.signal, &submission.waits);
        // The awaited signals may have failed by then, which the device does not check.
        let is_fallible = submission.may_fail && !due.is_empty();
        for wait in due.of(waits) {
            self.wait(&wait.event, wait.number, wait.number as u32)?;
        }
        // A refused function stays where it was: it is the program's.
        let call = match submission.work {
            Work::Call(_) => {
                background::ensure_thread()?;
                Some((self.next_host_fence()?, host_signal(signal, ticket)?))
            }
            _ => None,
        };
        match (mem::take(&mut submission.work), call) {
            (Work::Call(function), Some((fence, signal))) => {
                let task = Task::new(Some((function, fence)), waits);
                self.call(task, signal, command, functions)?;
            }
            (work, _) => {
                self.run(work, mem::take(extra), signal, command)?;
                if is_fallible {
                    let signal = host_signal(signal, ticket)?;
                    self.call(Task::new(None, waits), signal, command, functions)?;
                } else if let Some(event) = signal {
                    let issued = || issue(event, &self.gpu);
                    let ticket = ticket.take().map_or_else(issued, Ok)?;
                    command.ticket = Some(ticket);
                    self.signal(event, ticket, command)?;
                }
            }
        }
        let is_due = self.in_flight.is_fence_due(weight_of(command));
        let fence = is_due.then(|| self.fence.wrapping_add(1));
        if let Some(fence) = fence {
            self.ops.push(WordOp::Write(self.progress.address(), fence));
        }
        self.flush()?;
        Ok(fence)
    }

    /// Hands the gathered operations on words to the driver.
    #[inline]
    fn flush(&mut self) -> Result<()> {
        if self.ops.is_empty() {
            return Ok(());
        }
        // SAFETY: aligned words of events, which the command keeps until the stream is past them, or
        // of this process, which the stream and its jobs keep.
        let done = unsafe { self.gpu.driver().word_ops(self.stream, &self.ops) };
        self.ops.clear();
        done
    }

    /// Adds a wait for a signal, whose word will reach `value`. [`flush`](Self::flush) hands it to
    /// the driver.
    fn wait(&mut self, event: &Arc<EventCore>, number: u64, value: u32) -> Result<()> {
        let word = event.word(number, &self.gpu)? as DeviceAddress;
        self.ops.push(WordOp::Wait(word, value));
        Ok(())
    }

    /// Queues the work itself.
    fn run(
        &mut self,
        work: Work,
        extra: Extra,
        signal: &Option<Arc<EventCore>>,
        command: &mut InFlight,
    ) -> Result<()> {
        let profile = profile_of(signal);
        if matches!(work, Work::Marker) && profile.is_none() {
            return Ok(());
        }
        // The command keeps it from here on, also if the driver refuses something: it may be the
        // user's, and the queue is locked.
        let used = command.used.insert(Box::new(Used::new(work, extra)));
        self.flush()?;
        let times = profile.map(|_| CommandTimes::begin(&self.gpu, self.stream));
        let times = times.transpose()?;
        // SAFETY: the command keeps both until the stream is past this.
        unsafe { work::enqueue(&self.gpu, self.stream, &used.work, &used.extra)? };
        if let (Some(times), Some(profile)) = (times, profile) {
            times.end(self.stream)?;
            profile.follow(Arc::new(times));
        }
        Ok(())
    }

    /// Adds the device's write that is a signal. [`flush`](Self::flush) hands it to the driver.
    #[inline]
    fn signal(
        &mut self,
        event: &Arc<EventCore>,
        ticket: Ticket,
        command: &mut InFlight,
    ) -> Result<()> {
        let previous = ticket.previous_number();
        let is_own = self.own_signals.note(event, ticket.number, previous);
        if !is_own
            && !event.may_write(ticket)
            && let Some(previous) = previous
        {
            // Admitted already, unless another thread took a number since. Then the stream waits
            // without: a call that needs quiet may take until that thread's signal, or count as
            // stuck.
            self.waits.note([Wait::Event(Arc::clone(event), previous)]);
            self.wait(event, previous, ticket.previous)?;
            command.calls += 1;
        }
        let word = event.word(ticket.number, &self.gpu)? as DeviceAddress;
        self.ops.push(WordOp::Write(word, ticket.number as u32));
        Ok(())
    }

    /// Lets the host signal, or fail the signal, when it is this command's turn. Before that the
    /// host calls the program's function, if there is one, while the stream waits. The caller holds
    /// quiet calls off.
    fn call(
        &mut self,
        mut task: Task,
        signal: HostSignal,
        command: &mut InFlight,
        functions: &Arc<HostFunctions>,
    ) -> Result<()> {
        // The job may end where the driver must not be called, and what goes with the last event of
        // a context calls it: so that one is the command's.
        command.signal = signal.as_ref().map(|(event, _)| Arc::clone(event));
        task.signal = signal;
        let fence = task.function.as_ref().map(|(_, fence)| fence.clone());
        let job = Job::new(functions, task);
        let used = command
            .used
            .get_or_insert_with(|| Box::new(Used::new(Work::Marker, Extra::None)));
        used.job = Some(Arc::clone(&job));
        let data = Arc::clone(&job).into_raw();
        let called = self.flush().and_then(|()| {
            let driver = self.gpu.driver();
            // SAFETY: the job goes to this call alone, and is safe to call on any thread.
            unsafe { driver.call_host(self.stream, host_function::announce, data) }
        });
        if let Err(error) = called {
            // SAFETY: from above; the driver did not take it.
            drop(unsafe { Job::from_raw(data) });
            used.cancel(&error);
            return Err(error);
        }
        if let Some(HostFence { word, number }) = fence {
            self.ops.push(WordOp::Wait(word.address(), number));
            self.waits.note([Wait::Word(word, number)]);
        }
        Ok(())
    }

    fn next_host_fence(&mut self) -> Result<HostFence> {
        let fence = match &mut self.host_fence {
            Some(fence) => fence,
            fence => {
                let word = Arc::new(memory::take_word(&self.gpu)?);
                let number = word.read();
                fence.insert(HostFence { word, number })
            }
        };
        fence.number = fence.number.wrapping_add(1);
        Ok(fence.clone())
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

    /// Releases the commands that are done, as far as is known without asking the driver.
    #[inline]
    pub(super) fn prune(&mut self) {
        let written = self.progress.read();
        while let Some(mut command) = self.in_flight.pop_done(written) {
            self.calls -= command.calls;
            self.finished.extend(command.used.take());
            // Only the latest signal of a word counts, and looking at an event takes long.
            let next = self.in_flight.peek_done(RING as usize - 1);
            if !next.is_some_and(|next| next.covers(&command)) {
                command.record_finished();
            }
        }
        self.end_if_idle();
    }

    /// Tells the scheduler if nothing is in flight.
    #[inline]
    pub(super) fn end_if_idle(&self) {
        if self.in_flight.is_empty() {
            self.waits.end();
        }
    }

    /// Returns whether everything is done, as far as the device has said so. Makes the device write
    /// a fence behind everything up to now. Costs next to nothing.
    pub(super) fn is_done(&mut self) -> bool {
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

    /// Returns whether everything is done. An error means that the device or the driver has failed
    /// for good.
    pub(super) fn finish(&mut self) -> Result<bool> {
        self.prune();
        if self.in_flight.is_empty() && (!self.is_shared || self.is_abandoned) {
            return Ok(true);
        }
        match self.ask_driver() {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            // Asking is not allowed now.
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
            // Any call says whether the device still works.
            return driver.free_memory().map(|_| false);
        }
        Ok(!self.is_recording()? && driver.is_stream_done(self.stream)?)
    }

    /// Fails all that is in flight: the device has stopped. The returned commands may be the last
    /// to keep objects of the program.
    pub(super) fn fail_all(&mut self, error: &Error) -> VecDeque<InFlight> {
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

    /// Forgets the stream's waits after the driver has refused them, if nothing is in flight.
    #[cold]
    pub(super) fn clear_waits_if_idle(&mut self) {
        if self.in_flight.is_empty() {
            self.waits.clear();
            self.waits.end();
        }
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

/// Takes the number of a signal that the host completes, unless it was taken already.
fn host_signal(signal: &Option<Arc<EventCore>>, ticket: &mut Option<Ticket>) -> Result<HostSignal> {
    let Some(event) = signal else {
        return Ok(None);
    };
    let ticket = ticket.take().map_or_else(|| event.issue(), Ok)?;
    Ok(Some((Arc::clone(event), ticket)))
}

/// Returns the calls of the driver that a command takes, at most: its waits, its work, its times and
/// its signal.
fn calls_of(submission: &Submission, due: &Due) -> u32 {
    let function = match submission.work {
        Work::Call(_) => HOST_FUNCTION_CALLS,
        _ if submission.may_fail && !due.is_empty() => HOST_FUNCTION_CALLS,
        _ => 0,
    };
    let signal = match &submission.signal {
        Some(event) if event.profile().is_some() => 3,
        Some(_) => 1,
        None => 0,
    };
    due.waits.len() as u32 + work::calls(&submission.work) + function + signal
}

/// Returns a command's weight: the more calls it took, the sooner its end has to be known. Until
/// then the calls count, and the stream may seem to have no room.
fn weight_of(command: &InFlight) -> u32 {
    let least = if command.used.is_some() {
        MEMORY_WEIGHT
    } else {
        1
    };
    command.calls.max(least)
}

pub(super) fn profile_of(signal: &Option<Arc<EventCore>>) -> Option<&Profile> {
    signal.as_ref()?.profile()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands that are done count until the fence of their batch is written. A stream that gets
    /// them one by one must never seem to be full.
    #[test]
    fn batches_take_up_less_than_half_of_the_room() {
        for calls in 1..2 * HOST_FUNCTION_CALLS {
            for is_heavy in [false, true] {
                let mut list = InFlightList::new();
                let mut sum = 0;
                let mut is_due = false;
                while !is_due {
                    let used = is_heavy.then(|| Box::new(Used::new(Work::Marker, Extra::None)));
                    let command = InFlight {
                        calls,
                        used,
                        ..InFlight::default()
                    };
                    let weight = weight_of(&command);
                    is_due = list.is_fence_due(weight);
                    list.push(command, weight);
                    sum += calls;
                }
                assert!(sum < STREAM_MAX_CALLS / 2, "{sum} for {calls} each");
            }
        }
    }
}
