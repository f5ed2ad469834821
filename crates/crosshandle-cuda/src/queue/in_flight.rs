//! The commands that a queue keeps: pending, while the driver does not have them, and in flight,
//! until a stream has passed them.

use super::graph::Turn;
use super::host_function::{HostFunctions, Job};
use super::work::Extra;
use crate::device::Gpu;
use crate::driver::CudaEvent;
use crate::memory::WordPinner;
use crate::scheduler::admission::Wait;
use crosshandle_events::{RING, Ticket};
use crosshandle_hal::common::user_code::failure_text;
use crosshandle_hal::{Submission, WaitList, Work};
use crosshandle_ipc::EventCore;
use crosshandle_types::error::{Error, Result};
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

/// Weight of commands after which the device writes a fence. A plain signal weighs as much as the
/// calls that it takes. Each fence costs as much as a signal. With fewer fences, finished commands
/// are treated as in flight for longer.
const FENCE_WEIGHT: u32 = 64;

/// A command that the driver does not have yet, as it was submitted.
pub(super) struct Pending {
    pub(super) submission: Submission,
    /// The additional memory that the command will use, created before the queue was locked.
    pub(super) extra: Extra,
    /// The ticket of the command's signal, if already taken.
    pub(super) ticket: Option<Ticket>,
    /// The command's turn, if it is a pending run of a graph.
    pub(super) turn: Option<Turn>,
    /// The latest barrier before the command, if a later barrier has passed the command while it
    /// was pending. The command must not follow the later barrier, which may wait for it.
    pub(super) passed: Option<Option<Arc<Barrier>>>,
}

/// A point of an out-of-order queue that later commands follow.
pub(super) struct Barrier {
    /// The position among the queue's barriers, from 1.
    pub(super) number: u64,
    /// Happens after the barrier and everything before it.
    pub(super) event: CudaEvent,
    /// The waits before the barrier.
    pub(super) waits: Vec<Wait>,
}

impl Pending {
    /// Takes the number of the command's signal, because other signals may be submitted before the
    /// command starts.
    pub(super) fn number(&mut self, gpu: &Arc<Gpu>) -> Result<()> {
        if let Some(event) = &self.submission.signal
            && self.ticket.is_none()
        {
            self.ticket = Some(issue(event, gpu)?);
        }
        Ok(())
    }

    /// Takes the command, and leaves a command that does nothing.
    pub(super) fn take(&mut self) -> Self {
        Self {
            submission: self.submission.take(),
            extra: mem::take(&mut self.extra),
            ticket: self.ticket.take(),
            turn: self.turn.take(),
            passed: self.passed.take(),
        }
    }

    /// Ends the command without running it, because a signal that it waits for has failed.
    pub(super) fn skip(
        &mut self,
        error: Error,
        functions: &HostFunctions,
        finished: &mut Finished,
    ) -> Result<()> {
        let Self {
            submission,
            extra,
            ticket,
            turn: _turn,
            passed: _,
        } = self.take();
        finished.push(Box::new(Used::new(submission.work, extra)));
        match submission.signal {
            Some(event) => {
                let ticket = ticket.map_or_else(|| event.issue(), Ok)?;
                event.complete(ticket, Err(failure_text(error)));
            }
            None => functions.note_error(error),
        }
        Ok(())
    }

    /// Fails the command's signal and discards the command. The caller returns the error to the
    /// submitter.
    pub(super) fn refuse(&mut self, error: &Error, finished: &mut Finished) {
        self.fail(error);
        finished.push(Box::new(Used::refused(self.take())));
    }

    /// Fails the signal of a command that will not run. The caller drops the rest of the command,
    /// which may belong to the program.
    pub(super) fn fail(&mut self, error: &Error) {
        if let (Some(event), Some(ticket)) = (&self.submission.signal, self.ticket.take()) {
            event.complete(ticket, Err(failure_text(error.clone())));
        }
    }
}

/// Takes a number for a signal that a device writes.
#[inline]
pub(super) fn issue(event: &EventCore, gpu: &Arc<Gpu>) -> Result<Ticket> {
    event.mark_device_signals();
    // This may fail, so it comes before a number is taken.
    event.pin(&WordPinner(gpu))?;
    event.issue()
}

/// A command in flight, with all objects that it uses.
#[derive(Default)]
pub(super) struct InFlight {
    /// The event of the command's signal.
    pub(super) signal: Option<Arc<EventCore>>,
    pub(super) ticket: Option<Ticket>,
    pub(super) _waits: WaitList,
    /// The maximum number of driver calls that the command took.
    pub(super) calls: u32,
    /// Other objects that the command uses. Most commands only signal and wait.
    pub(super) used: Option<Box<Used>>,
}

impl InFlight {
    /// Marks the signal of a finished command as complete.
    pub(super) fn record_finished(self) {
        if let (Some(event), Some(ticket)) = (self.signal, self.ticket) {
            event.finish_device_signal(ticket.number);
        }
    }

    /// Returns whether `earlier` need not be marked if this command is. Both write the same word.
    pub(super) fn covers(&self, earlier: &Self) -> bool {
        match (&self.signal, &earlier.signal, self.ticket, earlier.ticket) {
            (Some(event), Some(other), Some(ticket), Some(before)) => {
                Arc::ptr_eq(event, other) && ticket.number == before.number + RING
            }
            _ => false,
        }
    }

    /// Fails the command, which will never finish.
    pub(super) fn fail(&mut self, error: &Error) {
        if let Some(used) = &mut self.used {
            used.cancel(error);
        }
        // Signals that the device wrote before it stopped remain written.
        if let (Some(event), Some(ticket)) = (&self.signal, self.ticket) {
            event.complete(ticket, Err(failure_text(error.clone())));
        }
    }
}

/// Objects that finished and refused commands used. They are dropped without a lock, because they
/// may belong to the program.
pub(super) type Finished = Vec<Box<Used>>;

/// The objects that a command with work uses.
pub(super) struct Used {
    pub(super) work: Work,
    pub(super) extra: Extra,
    /// The job on the host that completes the signal, if the device does not.
    pub(super) job: Option<Arc<Job>>,
    /// The waits and the signal of a refused command. They may contain the last reference to an
    /// event.
    _events: Option<Box<(WaitList, Option<Arc<EventCore>>)>>,
}

impl Used {
    pub(super) fn new(work: Work, extra: Extra) -> Self {
        Self {
            work,
            extra,
            job: None,
            _events: None,
        }
    }

    fn refused(pending: Pending) -> Self {
        let Submission {
            work,
            waits,
            signal,
            ..
        } = pending.submission;
        Self {
            _events: Some(Box::new((waits, signal))),
            ..Self::new(work, pending.extra)
        }
    }

    /// Fails the command's job, if the job exists and has not begun.
    pub(super) fn cancel(&mut self, error: &Error) {
        if let Some(function) = self.job.as_ref().and_then(|job| job.cancel(error)) {
            self.work = Work::Call(function);
        }
    }
}

/// Commands in flight, in the order in which they finish.
///
/// The device does not report every command, because a report costs as much as a signal. Commands
/// are grouped into batches instead. After each batch the device writes a fence, in memory that no
/// other process sees.
pub(super) struct InFlightList<T> {
    commands: VecDeque<T>,
    /// Ended batches, each with the fence that the device writes after it and the number of its
    /// commands that are still in the list.
    batches: VecDeque<(u32, usize)>,
    /// The number of commands after the last ended batch.
    open: usize,
    weight: u32,
}

impl<T> InFlightList<T> {
    pub(super) fn new() -> Self {
        Self {
            commands: VecDeque::new(),
            batches: VecDeque::new(),
            open: 0,
            weight: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Returns whether the list has commands after the last ended batch.
    pub(super) fn is_open(&self) -> bool {
        self.open > 0
    }

    /// Returns whether a fence must follow the next command, which has the given weight. Heavier
    /// commands need a fence sooner.
    pub(super) fn is_fence_due(&self, weight: u32) -> bool {
        self.weight + weight >= FENCE_WEIGHT
    }

    pub(super) fn push(&mut self, command: T, weight: u32) {
        self.commands.push_back(command);
        self.open += 1;
        self.weight += weight;
    }

    /// Ends the current batch. The device will write `fence` after it.
    pub(super) fn end_batch(&mut self, fence: u32) {
        self.batches.push_back((fence, self.open));
        self.open = 0;
        self.weight = 0;
    }

    /// Takes the next finished command. `written` is the latest fence that the device wrote.
    pub(super) fn pop_done(&mut self, written: u32) -> Option<T> {
        while let Some((fence, left)) = self.batches.front_mut() {
            if (written.wrapping_sub(*fence) as i32) < 0 {
                return None;
            }
            if *left > 0 {
                *left -= 1;
                return self.commands.pop_front();
            }
            self.batches.pop_front();
        }
        None
    }

    /// Returns the command `index` places after the first one, if it belongs to the same ended
    /// batch.
    pub(super) fn peek_done(&self, index: usize) -> Option<&T> {
        let (_, left) = self.batches.front()?;
        (index < *left).then(|| self.commands.get(index))?
    }

    /// Takes all commands, in order. Called when all of them have finished, or when none of them
    /// will.
    pub(super) fn take_all(&mut self) -> VecDeque<T> {
        self.batches.clear();
        self.open = 0;
        self.weight = 0;
        std::mem::take(&mut self.commands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(list: &mut InFlightList<u32>, written: u32) -> Vec<u32> {
        std::iter::from_fn(|| list.pop_done(written)).collect()
    }

    #[test]
    fn a_batch_goes_when_its_fence_is_written() {
        let mut list = InFlightList::new();
        for entry in 0..3 {
            assert!(!list.is_fence_due(1));
            list.push(entry, 1);
        }
        assert!(done(&mut list, 100).is_empty(), "no batch has ended");
        // The fence numbers wrap around here.
        list.end_batch(u32::MAX);
        list.push(3, 1);
        list.end_batch(0);
        list.push(4, 1);
        assert!(done(&mut list, u32::MAX - 1).is_empty());
        assert_eq!(list.pop_done(u32::MAX), Some(0));
        assert_eq!((list.peek_done(1), list.peek_done(2)), (Some(&2), None));
        assert_eq!(done(&mut list, u32::MAX), [1, 2]);
        assert_eq!(done(&mut list, 0), [3]);
        assert!(!list.is_empty());
        assert_eq!(list.take_all(), [4]);
        assert!(list.is_empty());
    }

    #[test]
    fn heavy_commands_end_a_batch_sooner() {
        let mut list = InFlightList::new();
        let mut until_fence = |weight| {
            let mut count = 1;
            while !list.is_fence_due(weight) {
                list.push(count, weight);
                count += 1;
            }
            list.push(count, weight);
            list.end_batch(1);
            count
        };
        assert_eq!(until_fence(1), FENCE_WEIGHT);
        assert_eq!(until_fence(FENCE_WEIGHT / 4), 4);
        assert_eq!(until_fence(FENCE_WEIGHT), 1);
    }

    #[test]
    fn empty_batches_do_no_harm() {
        let mut list = InFlightList::new();
        list.end_batch(1);
        list.end_batch(2);
        list.push(7, 1);
        list.end_batch(3);
        assert!(done(&mut list, 2).is_empty());
        assert_eq!(done(&mut list, 3), [7]);
    }
}
