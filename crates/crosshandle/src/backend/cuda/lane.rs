//! One stream of a queue, with what is under way in it.

use super::backlog::Backlog;
use super::call::{self, Gate, Job, Task, Worker, text_of};
use super::device::Gpu;
use super::driver::{self, CudaEvent, DeviceAddress, EventHandle, Stream, StreamHandle};
use super::entry::{Entry, Used, skip};
use super::times::CommandTimes;
use super::turns::Turns;
use super::words::Word;
use super::work;
use crate::backend::{Submission, Work};
use crate::counter::Ticket;
use crate::error::{Error, Result};
use crate::sharing::{EventCore, Profile};
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

/// How much sooner than a bare signal a command is let go of that keeps memory.
const HEAVY: u32 = 16;

/// A stream. In all methods the device's context is current.
pub(super) struct Lane {
    gpu: Arc<Gpu>,
    stream: StreamHandle,
    /// Unless the stream is somebody else's.
    _own: Option<Stream>,
    /// Others submit to it too.
    is_shared: bool,
    backlog: Backlog<Entry>,
    /// Where the device writes a mark after each part of the backlog, and the latest one.
    progress: Word,
    mark: u32,
    /// Where functions of the user let the stream go on, and the latest number for that.
    gate: Option<(Arc<Word>, u32)>,
    turns: Turns<EventCore>,
    /// Signals that the stream waits for, in order.
    unsettled: VecDeque<(Arc<EventCore>, u64)>,
    /// Notes for other lanes how far this one is, and whether anything came after that.
    join: Option<CudaEvent>,
    is_joined: bool,
    /// The latest barrier that this lane comes after.
    pub(super) barrier: u64,
}

/// What of a submission is left to wait for.
struct Due {
    /// Waits of the stream.
    waits: Vec<(Arc<EventCore>, u64)>,
    /// What failed already.
    failed: Option<Error>,
}

impl Lane {
    /// A lane on a stream of its own.
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let stream = gpu.driver().create_stream()?;
        Self::on(gpu, stream.handle(), Some(stream))
    }

    /// A lane on a stream that is kept by `own` or by whoever made it.
    pub(super) fn on(gpu: &Arc<Gpu>, stream: StreamHandle, own: Option<Stream>) -> Result<Self> {
        let progress = Word::new(gpu)?;
        Ok(Self {
            gpu: Arc::clone(gpu),
            stream,
            _own: own,
            is_shared: false,
            backlog: Backlog::new(),
            mark: progress.read(),
            progress,
            gate: None,
            turns: Turns::new(),
            unsettled: VecDeque::new(),
            join: None,
            is_joined: true,
            barrier: 0,
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

    /// Refuses to let a stream signal each time that somebody replays what he is recording.
    fn check_recording(&self) -> Result<()> {
        if self.is_shared && self.gpu.driver().is_recording(self.stream)? {
            return Err(Error::Unsupported(
                "this stream is being captured: what events and memory of other processes mean \
                 cannot be replayed"
                    .into(),
            ));
        }
        Ok(())
    }

    /// Whether nothing is under way, as far as is known without asking the driver.
    pub(super) fn is_idle(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Whether the stream waits for something that has not happened, or calls a function, which
    /// may do the same.
    pub(super) fn is_blocked(&mut self) -> bool {
        self.unsettled.retain(|wait| !is_settled(wait));
        let calls = |(word, number): &(Arc<Word>, u32)| word.read() != *number;
        !self.unsettled.is_empty() || self.gate.as_ref().is_some_and(calls)
    }

    /// The signal that the stream waits for at the moment, if it does.
    pub(super) fn blocker(&mut self) -> Option<(Arc<EventCore>, u64)> {
        self.forget_settled();
        self.unsettled.front().cloned()
    }

    fn forget_settled(&mut self) {
        while self.unsettled.front().is_some_and(is_settled) {
            self.unsettled.pop_front();
        }
    }

    /// Submits a command. `Ok` also if it is skipped, because what it waits for has failed.
    pub(super) fn submit(&mut self, submission: Submission, worker: &Arc<Worker>) -> Result<()> {
        self.prune();
        self.check_recording()?;
        if let Some(profile) = profile_of(&submission.signal) {
            profile.restart();
        }
        let due = self.due(&submission)?;
        if let Some(error) = due.failed {
            return skip(submission, error, worker);
        }
        self.is_joined = false;
        let mut entry = Entry::default();
        // What it waits for may have failed by then, and nobody asks the device.
        let is_fallible = submission.may_fail && !due.waits.is_empty();
        let submitted = self.wait_for_all(due.waits).and_then(|()| {
            let (signal, waits) = (&submission.signal, &submission.waits);
            match submission.work {
                Work::Call(function) => {
                    worker.start()?;
                    let gate = self.next_gate()?;
                    let task = Task::new(Some((function, gate)), waits);
                    self.call(task, signal, &mut entry, worker)
                }
                work => {
                    self.run(work, signal, &mut entry)?;
                    if is_fallible {
                        self.call(Task::new(None, waits), signal, &mut entry, worker)
                    } else {
                        self.signal(signal, &mut entry)
                    }
                }
            }
        });
        // Also if something was refused: the rest may be under way.
        entry._waits = submission.waits;
        let weight = if entry.used.is_some() { HEAVY } else { 1 };
        self.keep(entry, weight);
        submitted
    }

    /// What to wait for, and what has failed.
    fn due(&self, submission: &Submission) -> Result<Due> {
        let mut due = Due {
            waits: Vec::new(),
            failed: None,
        };
        for wait in &submission.waits {
            let (event, number) = (&wait.event, wait.number);
            let known = match event.result(number) {
                Some(result) => Some(result),
                None if event.is_known_abandoned(number) => Some(Err(Error::PeerDied)),
                // Earlier in this stream.
                None if self.turns.contains(event, number) => Some(Ok(())),
                None => event.arm(number)?,
            };
            match known {
                None => due.waits.push((Arc::clone(event), number)),
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    due.failed.get_or_insert(error);
                }
            }
        }
        Ok(due)
    }

    fn wait_for_all(&mut self, waits: Vec<(Arc<EventCore>, u64)>) -> Result<()> {
        for (event, number) in waits {
            self.wait(event, number, number as u32)?;
        }
        Ok(())
    }

    /// Lets the stream wait for a signal, whose word will reach `value`.
    fn wait(&mut self, event: Arc<EventCore>, number: u64, value: u32) -> Result<()> {
        let word = event.word(number, &self.gpu)? as DeviceAddress;
        self.forget_settled();
        self.unsettled.push_back((event, number));
        let driver = self.gpu.driver();
        // SAFETY: an event's word, aligned; the event is kept in the entry, or by the signal
        // behind it, until the stream is past this.
        unsafe { driver.wait_for_word(self.stream, word, value) }
    }

    /// Queues the work itself.
    fn run(
        &mut self,
        work: Work,
        signal: &Option<Arc<EventCore>>,
        entry: &mut Entry,
    ) -> Result<()> {
        if matches!(work, Work::Nothing) && profile_of(signal).is_none() {
            return Ok(());
        }
        let used = entry.used.insert(Box::new(Used::new(work)));
        let profile = profile_of(signal);
        let times = profile.map(|_| CommandTimes::begin(&self.gpu, self.stream));
        let times = times.transpose()?;
        // SAFETY: the entry keeps both until the stream is past this.
        unsafe { work::enqueue(&self.gpu, self.stream, &used.work, &mut used.extra)? };
        if let (Some(times), Some(profile)) = (times, profile) {
            times.end(self.stream)?;
            profile.follow(Box::new(times));
        }
        Ok(())
    }

    /// Lets the device signal.
    #[inline]
    fn signal(&mut self, signal: &Option<Arc<EventCore>>, entry: &mut Entry) -> Result<()> {
        let Some(event) = signal else {
            return Ok(());
        };
        event.announce();
        // Before a number is taken, since this may fail.
        event.word(0, &self.gpu)?;
        let ticket = event.issue()?;
        entry.signal = Some(Arc::clone(event));
        match self.write(event, ticket) {
            Ok(()) => {
                entry.ticket = Some(ticket);
                Ok(())
            }
            Err(error) => {
                self.turns.forget(event);
                event.complete(ticket, Err(text_of(error.clone())));
                Err(error)
            }
        }
    }

    #[inline]
    fn write(&mut self, event: &Arc<EventCore>, ticket: Ticket) -> Result<()> {
        let step = (ticket.number as u32).wrapping_sub(ticket.previous);
        let previous = ticket.number.checked_sub(u64::from(step));
        let is_own = self.turns.note(event, ticket.number, previous);
        if !is_own
            && !event.is_turn(ticket)
            && let Some(previous) = previous
        {
            self.wait(Arc::clone(event), previous, ticket.previous)?;
        }
        let word = event.word(ticket.number, &self.gpu)? as DeviceAddress;
        let driver = self.gpu.driver();
        // SAFETY: an event's word, aligned; the event is kept in the entry until the stream is
        // past this.
        unsafe { driver.write_word(self.stream, word, ticket.number as u32) }
    }

    /// Lets the host signal when it is this command's turn, or find out that it failed; and before
    /// that call the user's function, while the stream waits.
    fn call(
        &mut self,
        mut task: Task,
        signal: &Option<Arc<EventCore>>,
        entry: &mut Entry,
        worker: &Arc<Worker>,
    ) -> Result<()> {
        if let Some(event) = signal {
            task.signal = Some((Arc::clone(event), event.issue()?));
        }
        let gate = task.function.as_ref().map(|(_, gate)| {
            let (word, number) = (&gate.word, gate.number);
            (word.address(), number)
        });
        let job = Job::new(worker, task);
        let used = entry
            .used
            .get_or_insert_with(|| Box::new(Used::new(Work::Nothing)));
        used.job = Some(Arc::clone(&job));
        let data = Arc::clone(&job).into_raw();
        let driver = self.gpu.driver();
        // SAFETY: the job goes to this call alone, and is safe to call on any thread.
        let called = unsafe { driver.call_host(self.stream, call::announce, data) };
        if let Err(error) = called {
            // SAFETY: from above; the driver did not take it.
            drop(unsafe { Job::from_raw(data) });
            job.cancel(&error);
            return Err(error);
        }
        match gate {
            // SAFETY: a word of ours, aligned, that the lane and the job keep.
            Some((word, number)) => unsafe { driver.wait_for_word(self.stream, word, number) },
            None => Ok(()),
        }
    }

    fn next_gate(&mut self) -> Result<Gate> {
        let (word, number) = match &mut self.gate {
            Some(gate) => gate,
            gate => {
                let word = Word::new(&self.gpu)?;
                let number = word.read();
                gate.insert((Arc::new(word), number))
            }
        };
        *number = number.wrapping_add(1);
        Ok(Gate {
            word: Arc::clone(word),
            number: *number,
        })
    }

    /// Keeps what a command uses until it is done.
    fn keep(&mut self, entry: Entry, weight: u32) {
        if self.backlog.push(entry, weight)
            && let Err(error) = self.end_part()
        {
            // Then all of it is kept until the stream has nothing left to do.
            tracing::debug!(%error, "a stream's progress is not marked");
        }
    }

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
    pub(super) fn prune(&mut self) {
        let written = self.progress.read();
        while let Some(entry) = self.backlog.pop_done(written) {
            entry.settle();
        }
    }

    /// Whether everything is done. An error is that of the device or of the driver, for good.
    pub(super) fn finish(&mut self) -> Result<bool> {
        self.prune();
        if self.backlog.is_empty() && !self.is_shared {
            return Ok(true);
        }
        match self.gpu.driver().is_stream_done(self.stream) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            // Nobody may ask now.
            Err(error) if driver::is_capturing(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
        for entry in self.backlog.take_all() {
            entry.settle();
        }
        self.unsettled.clear();
        Ok(true)
    }

    /// Fails all that is under way: the device has stopped. What comes back may be the user's.
    pub(super) fn abandon(&mut self, error: &Error) -> VecDeque<Entry> {
        self.unsettled.clear();
        let entries = self.backlog.take_all();
        for entry in &entries {
            entry.fail(error);
        }
        entries
    }

    /// Lets whatever comes later in `other` come after all that is in this one.
    pub(super) fn join_into(&mut self, other: StreamHandle) -> Result<()> {
        if mem::replace(&mut self.is_joined, true) {
            return Ok(());
        }
        let driver = self.gpu.driver();
        let event = self.note()?;
        driver.wait_for_event(other, event)
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

fn is_settled((event, number): &(Arc<EventCore>, u64)) -> bool {
    event.is_settled(*number)
}

fn profile_of(signal: &Option<Arc<EventCore>>) -> Option<&Profile> {
    signal.as_ref()?.profile()
}
