//! Submits a command to a stream: its waits, its work and its signal as driver calls.

use super::{Due, HostSignal, QueueStream, profile_of};
use crate::device::CommandTimes;
use crate::driver::{DeviceAddress, WordOp};
use crate::memory;
use crate::memory::WordPinner;
use crate::queue::host_function::{self, HostFence, HostFunctions, Job, Task};
use crate::queue::in_flight::{InFlight, Pending, Used, issue};
use crate::queue::work::{self, Extra};
use crate::scheduler::admission::Wait;
use crate::tuning::STREAM_MAX_CALLS;
use crosshandle_events::Ticket;
use crosshandle_hal::common::user_code::failure_text;
use crosshandle_hal::{Submission, Work};
use crosshandle_ipc::EventCore;
use crosshandle_os::threads::background;
use crosshandle_types::error::Result;
use std::mem;
use std::sync::Arc;

/// Minimum weight of a command that keeps memory alive. A smaller weight keeps memory for longer,
/// and a larger one needs more fences.
const MEMORY_WEIGHT: u32 = 16;

/// Minimum weight of a run of a graph. The graph itself keeps the memory of its nodes alive, so a
/// run keeps little.
const GRAPH_WEIGHT: u32 = 4;

/// Number of calls that a host function is counted as. Measured: a waiting stream accepts 55 host
/// functions with commands in between.
const HOST_FUNCTION_CALLS: u32 = 32;

impl QueueStream {
    /// Returns whether the stream accepts one more command without blocking the submitter while the
    /// stream waits.
    pub(crate) fn has_room(&self, submission: &Submission, due: &Due) -> bool {
        // The two additional calls are a wait for another stream's signal, and a fence.
        self.calls == 0 || self.calls + calls_of(submission, due) + 2 <= STREAM_MAX_CALLS
    }

    /// Passes a command to the driver, after the waits that are due. Keeps the objects that the
    /// command uses until it has finished. It keeps them even if the driver refused a part of the
    /// command, because the other parts may be in flight.
    pub(crate) fn submit(
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
            // The driver did not get the work.
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

    /// Passes a command to the driver, and then a fence if one is due.
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
            ..
        } = pending;
        let (signal, waits) = (&submission.signal, &submission.waits);
        // The awaited signals may still fail, which the device does not check.
        let is_fallible = submission.may_fail && !due.is_empty();
        for wait in due.of(waits) {
            self.wait(&wait.event, wait.number, wait.number as u32)?;
        }
        // A function that cannot be called stays in the submission, because it belongs to the
        // program.
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

    /// Passes the collected operations on words to the driver.
    #[inline]
    fn flush(&mut self) -> Result<()> {
        if self.ops.is_empty() {
            return Ok(());
        }
        // SAFETY: the words are aligned. They belong to events, which the command keeps until the
        // stream has passed them, or to this process, where the stream and its jobs keep them.
        let done = unsafe { self.gpu.driver().word_ops(self.stream, &self.ops) };
        self.ops.clear();
        done
    }

    /// Adds a wait for a signal, whose word will reach `value`. [`flush`](Self::flush) passes it to
    /// the driver.
    fn wait(&mut self, event: &Arc<EventCore>, number: u64, value: u32) -> Result<()> {
        let word = event.word(number, &WordPinner(&self.gpu))? as DeviceAddress;
        self.ops.push(WordOp::Wait(word, value));
        Ok(())
    }

    /// Submits the work itself.
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
        // From here on, the command keeps the work, even if the driver refuses it. The work may
        // belong to the program, and the queue is locked.
        let used = command.used.insert(Box::new(Used::new(work, extra)));
        self.flush()?;
        let times = profile.map(|_| CommandTimes::begin(&self.gpu, self.stream));
        let times = times.transpose()?;
        // SAFETY: the command keeps the work and the extra memory until the stream has passed them.
        unsafe { work::enqueue(&self.gpu, self.stream, &used.work, &used.extra)? };
        if let (Some(times), Some(profile)) = (times, profile) {
            times.end(self.stream)?;
            profile.follow(Arc::new(times));
        }
        Ok(())
    }

    /// Adds the write by which the device signals. [`flush`](Self::flush) passes it to the driver.
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
            // The wait was already admitted, unless another thread has taken a number since. In
            // that case, the stream waits without admission. A quiet call may then take until the
            // other thread's signal, or be treated as stuck.
            self.waits.note([Wait::Event(Arc::clone(event), previous)]);
            self.wait(event, previous, ticket.previous)?;
            command.calls += 1;
        }
        let word = event.word(ticket.number, &WordPinner(&self.gpu))? as DeviceAddress;
        self.ops.push(WordOp::Write(word, ticket.number as u32));
        Ok(())
    }

    /// Makes the host complete or fail the signal when the stream reaches this command. Before
    /// that, the host calls the program's function, if there is one, while the stream waits. The
    /// caller holds off quiet calls.
    fn call(
        &mut self,
        mut task: Task,
        signal: HostSignal,
        command: &mut InFlight,
        functions: &Arc<HostFunctions>,
    ) -> Result<()> {
        // The command keeps another reference to the event. The job may end on a thread that must
        // not call the driver, and dropping the last event of a context calls the driver.
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
            // SAFETY: the job is passed to this call alone, and may be called on any thread.
            unsafe { driver.call_host(self.stream, host_function::announce, data) }
        });
        if let Err(error) = called {
            // SAFETY: the pointer is from above, and the driver did not take it.
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
}

/// Takes the number of a signal that the host completes, unless it was already taken.
fn host_signal(signal: &Option<Arc<EventCore>>, ticket: &mut Option<Ticket>) -> Result<HostSignal> {
    let Some(event) = signal else {
        return Ok(None);
    };
    let ticket = ticket.take().map_or_else(|| event.issue(), Ok)?;
    Ok(Some((Arc::clone(event), ticket)))
}

/// Returns the maximum number of driver calls that a command takes for its waits, its work, its
/// times and its signal.
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

/// Returns a command's weight. A command of many calls is heavier, so that its end is noticed
/// sooner. Until then, its calls take up room in the stream.
fn weight_of(command: &InFlight) -> u32 {
    let least = match command.used.as_ref().map(|used| &used.work) {
        Some(Work::Graph(_)) => GRAPH_WEIGHT,
        Some(_) => MEMORY_WEIGHT,
        None => 1,
    };
    command.calls.max(least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::in_flight::InFlightList;

    /// Finished commands take up room until the fence of their batch is written. A stream that gets
    /// commands one by one must never seem full.
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
