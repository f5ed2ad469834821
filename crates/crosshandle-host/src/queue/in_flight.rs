//! Launches that were passed to the OpenCL runtime. The runtime runs them in order on its own
//! threads, so no thread of this library waits between them.
//!
//! A completed launch is *collected* by the thread that notices its completion. This is the worker,
//! which waits for one launch after the other, or a thread that submits a command or waits for the
//! queue.

use super::{Command, PendingCommands, QueueCore, StartedLaunch};
use crosshandle_events::{Outcome, Ticket};
use crosshandle_hal::common::user_code;
use crosshandle_hal::{Submission, WaitList, WaitPoint, Work};
use crosshandle_ipc::{EventCore, Profile};
use crosshandle_types::error::Result;
use crosshandle_types::sync::MutexGuard;
use std::sync::Arc;

/// Number of a queue's latest launches that are searched for the signal that another launch waits
/// for. A launch that waits for an older one wakes the queue's thread.
const SEARCHED_LAUNCHES: usize = 16;

/// A launch that was passed to the runtime.
pub(super) struct InFlight {
    pub(super) number: u64,
    pub(super) before_later: bool,
    started: Arc<StartedLaunch>,
    /// Keeps the objects that the kernel uses.
    work: Work,
    signal: Option<(Arc<EventCore>, Ticket)>,
}

/// The work of completed launches. Dropping it may run code of the program, so the caller must hold
/// no lock then.
#[derive(Default)]
pub(super) struct Spent(Vec<Work>);

impl Spent {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for Spent {
    fn drop(&mut self) {
        for work in self.0.drain(..) {
            user_code::drop_contained(work);
        }
    }
}

/// Returns whether the runtime may order a command among launches. A command with timestamps is
/// excluded, because the worker takes them.
pub(super) fn suits(work: &Work, profile: Option<&Profile>) -> bool {
    matches!(work, Work::Launch(_)) && profile.is_none()
}

impl PendingCommands {
    /// Returns whether the waits of a launch allow that it is passed to the runtime. Each signal
    /// must be complete, or an earlier launch must be about to send it.
    pub(super) fn are_met(&self, waits: &WaitList) -> bool {
        waits.iter().all(|wait| {
            wait.event.outcome(wait.number) == Outcome::Complete || self.will_signal(wait)
        })
    }

    fn will_signal(&self, wait: &WaitPoint) -> bool {
        let mut latest = self.in_flight.iter().rev().take(SEARCHED_LAUNCHES);
        latest.any(|launch| {
            launch.signal.as_ref().is_some_and(|(event, ticket)| {
                Arc::ptr_eq(event, &wait.event) && ticket.number == wait.number
            })
        })
    }

    /// Removes the completed launches, signals their events, and returns their work.
    pub(super) fn collect(&mut self) -> Spent {
        let mut spent = Spent::default();
        while let Some(first) = self.in_flight.front() {
            let Some(result) = first.started.result() else {
                break;
            };
            let launch = self.in_flight.pop_front().expect("just seen");
            match (launch.signal, result) {
                (Some((event, ticket)), result) => {
                    event.complete(ticket, result.map_err(user_code::failure_text));
                }
                (None, Err(error)) => {
                    self.error.get_or_insert(error);
                }
                (None, Ok(())) => {}
            }
            spent.0.push(launch.work);
        }
        spent
    }

    /// Returns whether the worker may collect launches later. This requires that no event waits for
    /// a launch, that no thread waits for the queue, and that commands were added since there were
    /// `known`, so that more may follow soon. If there are launches from before that, the worker
    /// waits for them instead.
    pub(super) fn may_collect_later(&self, known: u64) -> bool {
        let first = self.in_flight.front();
        self.finishers == 0
            && self.count != known
            && first.is_none_or(|launch| launch.number >= known)
            && self.in_flight.iter().all(|launch| launch.signal.is_none())
    }

    /// Returns the launch that the worker waits for, which is the first that signals an event, or
    /// otherwise the last.
    pub(super) fn awaited(&self) -> Option<Arc<StartedLaunch>> {
        let signalling = self.in_flight.iter().find(|launch| launch.signal.is_some());
        let awaited = signalling.or(self.in_flight.back())?;
        Some(Arc::clone(&awaited.started))
    }

    fn add(&mut self, started: StartedLaunch, command: Command) {
        self.in_flight.push_back(InFlight {
            number: command.number,
            before_later: command.before_later,
            started: Arc::new(started),
            work: command.work,
            signal: command.signal,
        });
    }
}

impl QueueCore {
    /// Passes a launch to the runtime. Only launches precede it.
    pub(super) fn launch(
        self: &Arc<Self>,
        pending: &mut PendingCommands,
        submission: &mut Submission,
    ) -> Result<()> {
        let Work::Launch(launch) = &submission.work else {
            unreachable!("only launches suit the runtime");
        };
        self.ensure_worker(pending)?;
        let Ok(started) = self.launcher.start(launch) else {
            // The worker tries again. If that fails too, the failure is reported as the command's.
            return self.enqueue(pending, submission);
        };
        let ticket = submission.signal.as_ref().map(|event| event.issue());
        let ticket = match ticket.transpose() {
            Ok(ticket) => ticket,
            Err(error) => {
                let _ = started.wait();
                return Err(error);
            }
        };
        let command = pending.number(submission, ticket);
        let is_awaited = command.signal.is_some();
        pending.add(started, command);
        if is_awaited || !pending.is_worker_dozing {
            self.wake_worker(pending);
        }
        Ok(())
    }

    /// Passes a launch from the pending commands to the runtime. Only the worker calls this.
    pub(super) fn launch_pending(&self, command: Command) -> Result<()> {
        let Work::Launch(launch) = &command.work else {
            unreachable!("only launches suit the runtime");
        };
        match self.launcher.start(launch) {
            Ok(started) => {
                let mut pending = self.pending.lock();
                pending.running = None;
                pending.add(started, command);
                Ok(())
            }
            Err(error) => {
                user_code::drop_contained(command.work);
                let Some((event, ticket)) = command.signal else {
                    return Err(error);
                };
                event.complete(ticket, Err(user_code::failure_text(error)));
                Ok(())
            }
        }
    }

    /// Waits for launches on the calling thread, while only launches are left of the first `count`
    /// commands. The runtime then runs the launches on this thread, which is faster than waking
    /// other threads.
    pub(super) fn help<'a>(
        &'a self,
        mut pending: MutexGuard<'a, PendingCommands>,
        count: u64,
    ) -> MutexGuard<'a, PendingCommands> {
        while pending.has_launches_alone() && !pending.is_done(count) {
            let launches = pending.in_flight.iter().rev();
            let mut earlier = launches.skip_while(|launch| launch.number >= count);
            let Some(last) = earlier.next().map(|launch| Arc::clone(&launch.started)) else {
                break;
            };
            drop(pending);
            // A failure belongs to the command and is reported when the launch is collected.
            let _ = last.wait();
            pending = self.pending.lock();
            let spent = pending.collect();
            if !spent.is_empty() {
                drop(pending);
                drop(spent);
                pending = self.pending.lock();
            }
        }
        pending
    }
}
