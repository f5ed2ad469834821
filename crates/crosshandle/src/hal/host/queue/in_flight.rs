//! Launches that the OpenCL runtime has. It runs them in their order, on its own threads, so that none of
//! ours waits between them.
//!
//! Whichever thread finds a launch done *collects* it: the worker, which waits for one after the other,
//! or a thread that submits, or that waits for the queue.

use super::{Command, Inner, PendingCommands, StartedLaunch};
use crate::error::Result;
use crate::event_protocol::{Outcome, Ticket};
use crate::hal::common::user_code;
use crate::hal::host::tuning::SEARCHED_LAUNCHES;
use crate::hal::{Submission, WaitList, WaitPoint, Work};
use crate::ipc::{EventCore, Profile};
use crate::sync::MutexGuard;
use std::sync::Arc;

/// A launch that the runtime has.
pub(super) struct InFlight {
    pub(super) number: u64,
    pub(super) before_later: bool,
    started: Arc<StartedLaunch>,
    /// Keeps what the kernel uses.
    work: Work,
    signal: Option<(Arc<EventCore>, Ticket)>,
}

/// The work of launches that are done. Dropping it may run code of the program, so that no lock may be
/// held then.
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

/// Returns whether the runtime may order a command among launches. Not one whose times are taken: the
/// worker takes them.
pub(super) fn suits(work: &Work, profile: Option<&Profile>) -> bool {
    matches!(work, Work::Launch(_)) && profile.is_none()
}

impl PendingCommands {
    /// Returns whether a launch may be given to the runtime, as far as its waits go: what it waits for
    /// has happened, or will be signalled by a launch before it.
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

    /// Takes the launches that are done, signals their events, and returns what they leave.
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

    /// Returns whether the worker may look again later: no event waits for a launch, no thread for the
    /// queue, and commands came since there were `known`, so that more may follow soon. Launches that were
    /// there already are waited for instead.
    pub(super) fn may_collect_later(&self, known: u64) -> bool {
        let first = self.in_flight.front();
        self.finishers == 0
            && self.count != known
            && first.is_none_or(|launch| launch.number >= known)
            && self.in_flight.iter().all(|launch| launch.signal.is_none())
    }

    /// Returns the launch that the worker waits for: the first that signals an event, or the last.
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

impl Inner {
    /// Gives a launch to the runtime that only launches precede.
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
            // The worker tries again, and tells the failure as that of the command.
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

    /// Gives a launch from the list to the runtime. The worker calls this.
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

    /// Waits for launches on the calling thread, as long as nothing else is left of the first `count`
    /// commands: the runtime then runs them there, which is faster than waking threads.
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
            // A failure is the command's, and is told when it is collected.
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
