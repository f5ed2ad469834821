//! Commands as lists keep them until they end.

use super::QueueCommon;
use super::completion::CompletionFlag;
use super::work::{self, Staging};
use crate::error::{Error, Result};
use crate::event_protocol::{Outcome, Ticket};
use crate::hal::common::leak_registry;
use crate::hal::common::user_code::{drop_contained, failure_text};
use crate::hal::level_zero::tuning::MAX_SHORT_COMMAND_BYTES;
use crate::hal::{Submission, WaitList, WaitPoint, Work};
use crate::ipc::{EventCore, Profile};
use std::mem;
use std::sync::Arc;

/// A command of a list. What few commands have is in `extras`, since commands are moved.
#[derive(Default)]
pub(super) struct Command {
    pub(super) work: Work,
    pub(super) waits: WaitList,
    /// An event, and the number of its signal.
    pub(super) signal: Option<(Arc<EventCore>, u64)>,
    pub(super) extras: Option<Box<Extras>>,
    /// The command takes so long that it shares no fence with the commands before.
    pub(super) is_long: bool,
    /// The command's event took timestamps when the command was submitted.
    pub(super) is_timed: bool,
    /// The list signals the native mirror of its event.
    pub(super) signals_mirror: bool,
    /// The list signals the native mirror after all fences of the command, and so uses it for
    /// longer.
    pub(super) retains_mirror: bool,
    /// The list's thread is about to append it or to call its function; no other thread may.
    pub(super) is_claimed: bool,
    /// The command ends as soon as all before it have ended: the list has nothing of it that takes
    /// time.
    pub(super) ends_with_previous: bool,
    /// The list was seen to have waited for its waits.
    pub(super) has_started: bool,
    /// The list may have a part of the command whose end no fence will tell.
    pub(super) may_be_partial: bool,
}

#[derive(Default)]
pub(super) struct Extras {
    pub(super) staging: Staging,
    /// Commands of other lists that it comes after.
    pub(super) after: Vec<Arc<CompletionFlag>>,
    /// Raised when the command has ended, if commands of other lists may come after it.
    pub(super) completion: Option<Arc<CompletionFlag>>,
    /// The reason why the command fails: the driver has refused it, or there was no memory for it.
    pub(super) failure: Option<Error>,
}

impl Extras {
    /// Makes the extras of a command that comes after others, and that commands of other lists may
    /// come after.
    pub(super) fn after(
        after: Vec<Arc<CompletionFlag>>,
    ) -> (Arc<CompletionFlag>, Option<Box<Self>>) {
        let completion = Arc::new(CompletionFlag::default());
        let extras = Self {
            after,
            completion: Some(Arc::clone(&completion)),
            ..Self::default()
        };
        (completion, Some(Box::new(extras)))
    }

    /// Adds staging memory. A command that got none fails when its turn comes.
    #[inline]
    pub(super) fn with_staging(
        mut extras: Option<Box<Self>>,
        staging: Result<Staging>,
    ) -> Option<Box<Self>> {
        match staging {
            Ok(Staging::None) => {}
            Ok(staging) => extras.get_or_insert_default().staging = staging,
            Err(error) => extras.get_or_insert_default().failure = Some(error),
        }
        extras
    }
}

impl Command {
    /// Takes a submission; `number` is that of its signal.
    #[inline]
    pub(super) fn new(
        submission: &mut Submission,
        number: Option<u64>,
        extras: Option<Box<Extras>>,
    ) -> Self {
        let signal = submission.signal.take().zip(number);
        // Timestamps may be switched on or off before it ends.
        let is_timed = signal
            .as_ref()
            .is_some_and(|(event, _)| event.profile().is_some());
        Self {
            is_long: is_timed || work::bytes(&submission.work) > MAX_SHORT_COMMAND_BYTES,
            is_timed,
            work: mem::take(&mut submission.work),
            waits: mem::take(&mut submission.waits),
            signal,
            extras,
            ..Self::default()
        }
    }

    /// Returns whether the host has something to do before the list can go on with the command,
    /// other than to wait for signals.
    pub(super) fn needs_host(&self) -> bool {
        let is_after = |extras: &Extras| extras.after.iter().any(|flag| !flag.is_raised());
        self.is_claimed
            || matches!(self.work, Work::Call(_))
            || self.extras.as_deref().is_some_and(is_after)
    }

    /// Returns whether the list waits for the driver's events before the command.
    pub(super) fn waits_on_device(&self) -> bool {
        self.waits.iter().any(|wait| wait.promise.is_some())
    }

    /// Returns whether a thread may wait for the command's end.
    pub(super) fn is_awaited(&self) -> bool {
        let extras = self.extras.as_ref();
        self.signal.is_some() || extras.is_some_and(|extras| extras.completion.is_some())
    }

    pub(super) fn has_failed(&self) -> bool {
        let extras = self.extras.as_ref();
        extras.is_some_and(|extras| extras.failure.is_some())
    }

    pub(super) fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    pub(super) fn staging(&self) -> &Staging {
        self.extras
            .as_ref()
            .map_or(&Staging::None, |extras| &extras.staging)
    }

    pub(super) fn profile(&self) -> Option<&Profile> {
        self.signal.as_ref()?.0.profile()
    }

    /// Keeps the objects that the command uses for as long as the process lives: the driver may
    /// access it at any time.
    pub(super) fn leak_used(&self) {
        let kept = self
            .work
            .operands()
            .filter_map(|operand| operand.keep.clone());
        kept.for_each(leak_registry::leak);
        if let Work::Graph(run) = &self.work {
            mem::forget(Arc::clone(&run.nodes));
        }
        if let Work::Launch(launch) = &self.work {
            mem::forget((Arc::clone(&launch.kernel), launch.arguments.clone()));
        }
        if let Work::CopyImage(copy) = &self.work {
            let images = [copy.to.image(), copy.from.image()];
            mem::forget(images.map(|image| image.map(Arc::clone)));
        }
        let events = self.waits.iter().map(|wait| Arc::clone(&wait.event));
        mem::forget(events.collect::<Vec<_>>());
        mem::forget(self.signal.as_ref().map(|(event, _)| Arc::clone(event)));
        mem::forget(self.staging().clone());
    }

    /// Drops the objects that the command used, and signals. This runs code of the program's, so no
    /// lock may be held. Returns the event if the list still uses its mirror. More commands may
    /// signal it unless the queue `is_closed`.
    pub(super) fn end(
        self,
        queue: &QueueCommon,
        result: Result<()>,
        is_closed: bool,
    ) -> Option<Arc<EventCore>> {
        if let Some(profile) = self.profile() {
            Profile::stamp(&profile.ended);
        }
        let extras = self.extras.map(|extras| *extras).unwrap_or_default();
        let result = extras.failure.map_or(result, Err);
        let retained = self.signal.as_ref().filter(|_| self.retains_mirror);
        let retained = retained.map(|(event, _)| Arc::clone(event));
        drop_contained((self.work, extras.staging, self.waits));
        match (self.signal, result) {
            (Some((event, number)), result) => {
                event.complete(Ticket::single(number), result.map_err(failure_text));
                if !is_closed && event.is_mirror_requested() {
                    // For the next signal: submitting must not wait for another process to answer.
                    event.fetch_mirror();
                }
            }
            (None, Err(error)) => queue.keep_error(error),
            (None, Ok(())) => {}
        }
        if let Some(completion) = extras.completion {
            completion.raise();
        }
        retained
    }
}

/// Completes signals that the list has seen; their submitters may not know of them yet.
pub(super) fn complete_observed(waits: &[WaitPoint]) {
    let on_device = waits.iter().filter(|wait| wait.promise.is_some());
    for wait in on_device.filter(|wait| !is_revoked(wait)) {
        wait.event.complete_observed(wait.number);
    }
}

pub(super) fn is_decided(wait: &WaitPoint) -> bool {
    wait.event.outcome(wait.number) != Outcome::Pending
}

/// Returns whether the device may never learn of a signal: it has failed, or comes from another list
/// than was promised. A signal that has come otherwise may reach a busy device late.
pub(super) fn may_never_reach_device(wait: &WaitPoint) -> bool {
    matches!(wait.event.outcome(wait.number), Outcome::Failed(_)) || is_revoked(wait)
}

fn is_revoked(wait: &WaitPoint) -> bool {
    wait.promise
        .is_some_and(|promise| wait.event.is_revoked(promise))
}

pub(super) fn copy_of(wait: &WaitPoint) -> WaitPoint {
    WaitPoint {
        event: Arc::clone(&wait.event),
        ..*wait
    }
}
