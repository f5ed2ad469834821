//! A command as calls of the driver.

use super::{Due, Lane, profile_of, weight_of};
use crate::error::Result;
use crate::event_protocol::Ticket;
use crate::hal::Work;
use crate::hal::cuda::call;
use crate::hal::cuda::call::{Gate, Job, Task, Worker};
use crate::hal::cuda::driver::{DeviceAddress, WordOp};
use crate::hal::cuda::entry::{Entry, Used};
use crate::hal::cuda::held;
use crate::hal::cuda::held::Held;
use crate::hal::cuda::times::CommandTimes;
use crate::hal::cuda::waits::Wait;
use crate::hal::cuda::words::Word;
use crate::hal::cuda::work;
use crate::ipc::EventCore;
use std::mem;
use std::sync::Arc;

/// What the host signals when a command is done.
type HostSignal = Option<(Arc<EventCore>, Ticket)>;

/// Takes the number of such a signal, unless it was taken already.
fn host_signal(signal: &Option<Arc<EventCore>>, ticket: &mut Option<Ticket>) -> Result<HostSignal> {
    let Some(event) = signal else {
        return Ok(None);
    };
    let ticket = ticket.take().map_or_else(|| event.issue(), Ok)?;
    Ok(Some((Arc::clone(event), ticket)))
}

impl Lane {
    /// Hands a command to the driver, and then a mark, if it is time for one.
    #[inline]
    pub(super) fn enqueue(
        &mut self,
        held: &mut Held,
        due: &Due,
        entry: &mut Entry,
        worker: &Arc<Worker>,
    ) -> Result<Option<u32>> {
        let submission = &mut held.submission;
        let (signal, waits) = (&submission.signal, &submission.waits);
        // What it waits for may have failed by then, and nobody asks the device.
        let is_fallible = submission.may_fail && !due.is_empty();
        for wait in due.of(waits) {
            self.wait(&wait.event, wait.number, wait.number as u32)?;
        }
        // What is refused stays where it was: the function is the user's.
        let call = match submission.work {
            Work::Call(_) => {
                worker.start()?;
                Some((self.next_gate()?, host_signal(signal, &mut held.ticket)?))
            }
            _ => None,
        };
        match (mem::replace(&mut submission.work, Work::Marker), call) {
            (Work::Call(function), Some((gate, signal))) => {
                let task = Task::new(Some((function, gate)), waits);
                self.call(task, signal, entry, worker)?;
            }
            (work, _) => {
                self.run(work, signal, entry)?;
                if is_fallible {
                    let signal = host_signal(signal, &mut held.ticket)?;
                    self.call(Task::new(None, waits), signal, entry, worker)?;
                } else if let Some(event) = signal {
                    let issued = || held::issue(event, &self.gpu);
                    let ticket = held.ticket.take().map_or_else(issued, Ok)?;
                    entry.ticket = Some(ticket);
                    self.signal(event, ticket)?;
                }
            }
        }
        self.flush_and_mark(weight_of(entry))
    }

    /// Hands to the driver what was put together for it, and a mark, if it is time for one.
    #[inline]
    pub(super) fn flush_and_mark(&mut self, weight: u32) -> Result<Option<u32>> {
        let is_due = self.backlog.is_mark_due(weight);
        let mark = is_due.then(|| self.mark.wrapping_add(1));
        if let Some(mark) = mark {
            self.ops.push(WordOp::Write(self.progress.address(), mark));
        }
        self.flush()?;
        Ok(mark)
    }

    /// Hands to the driver what was put together for it.
    #[inline]
    fn flush(&mut self) -> Result<()> {
        if self.ops.is_empty() {
            return Ok(());
        }
        let driver = self.gpu.driver();
        // SAFETY: aligned words of events, which the entry keeps until the stream is past them,
        // or of ours, which the lane and its jobs keep.
        let done = unsafe {
            match self.ops[..] {
                [only] => driver.word_op(self.stream, only),
                _ => driver.word_ops(self.stream, &self.ops),
            }
        };
        self.ops.clear();
        done
    }

    /// Lets the stream wait for a signal, whose word will reach `value`.
    pub(super) fn wait(&mut self, event: &Arc<EventCore>, number: u64, value: u32) -> Result<()> {
        let word = event.word(number, &self.gpu)? as DeviceAddress;
        self.ops.push(WordOp::Wait(word, value));
        Ok(())
    }

    /// Queues the work itself.
    fn run(
        &mut self,
        work: Work,
        signal: &Option<Arc<EventCore>>,
        entry: &mut Entry,
    ) -> Result<()> {
        if matches!(work, Work::Marker) && profile_of(signal).is_none() {
            return Ok(());
        }
        self.flush()?;
        let used = entry.used.insert(Box::new(Used::new(work)));
        let profile = profile_of(signal);
        let times = profile.map(|_| CommandTimes::begin(&self.gpu, self.stream));
        let times = times.transpose()?;
        // SAFETY: the entry keeps both until the stream is past this.
        unsafe { work::enqueue(&self.gpu, self.stream, &used.work, &mut used.extra)? };
        if let (Some(times), Some(profile)) = (times, profile) {
            times.end(self.stream)?;
            profile.follow(Arc::new(times));
        }
        Ok(())
    }

    /// Lets the device signal.
    #[inline]
    pub(super) fn signal(&mut self, event: &Arc<EventCore>, ticket: Ticket) -> Result<()> {
        let previous = ticket.previous_number();
        let is_own = self.turns.note(event, ticket.number, previous);
        if !is_own
            && !event.may_write(ticket)
            && let Some(previous) = previous
        {
            // Known already, unless somebody else was faster.
            self.waits.add([Wait::Event(Arc::clone(event), previous)]);
            self.wait(event, previous, ticket.previous)?;
        }
        let word = event.word(ticket.number, &self.gpu)? as DeviceAddress;
        self.ops.push(WordOp::Write(word, ticket.number as u32));
        Ok(())
    }

    /// Lets the host signal when it is this command's turn, or find out that it failed; and before
    /// that call the user's function, while the stream waits.
    fn call(
        &mut self,
        mut task: Task,
        signal: HostSignal,
        entry: &mut Entry,
        worker: &Arc<Worker>,
    ) -> Result<()> {
        // The job may end where the driver must not be called, and what goes with the last event of
        // a context calls it: so that one is the entry's.
        entry.signal = signal.as_ref().map(|(event, _)| Arc::clone(event));
        task.signal = signal;
        let gate = task.function.as_ref().map(|(_, gate)| {
            let (word, number) = (&gate.word, gate.number);
            (Arc::clone(word), number)
        });
        let job = Job::new(worker, task);
        let used = entry
            .used
            .get_or_insert_with(|| Box::new(Used::new(Work::Marker)));
        used.job = Some(Arc::clone(&job));
        let data = Arc::clone(&job).into_raw();
        let called = self.flush().and_then(|()| {
            let driver = self.gpu.driver();
            // SAFETY: the job goes to this call alone, and is safe to call on any thread.
            unsafe { driver.call_host(self.stream, call::announce, data) }
        });
        if let Err(error) = called {
            // SAFETY: from above; the driver did not take it.
            drop(unsafe { Job::from_raw(data) });
            used.cancel(&error);
            return Err(error);
        }
        if let Some((word, number)) = gate {
            self.ops.push(WordOp::Wait(word.address(), number));
            self.waits.add([Wait::Word(word, number)]);
        }
        Ok(())
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
}
