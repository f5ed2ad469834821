//! Commands in the form in which lists keep them until they end.

use super::QueueCommon;
use super::completion::CompletionFlag;
use super::work::{self, Staging};
use crosshandle_events::{Outcome, Ticket};
use crosshandle_hal::common::leak_registry;
use crosshandle_hal::common::user_code::{drop_contained, failure_text};
use crosshandle_hal::{Submission, WaitList, WaitPoint, Work};
use crosshandle_ipc::{EventCore, Profile};
use crosshandle_types::error::{Error, Result};
use std::mem;
use std::sync::Arc;

/// Maximum number of bytes that a command may write if it shares its fence with later commands. At
/// a GPU's 100 GB/s, sharing delays a waiter for the previous command by about 0.6 µs.
const MAX_SHORT_COMMAND_BYTES: usize = 64 << 10;

/// A command of a list. Parts that few commands need are in `extras`, because commands are moved
/// often.
#[derive(Default)]
pub(super) struct Command {
    pub(super) work: Work,
    pub(super) waits: WaitList,
    /// The event that the command signals, and the number of the signal.
    pub(super) signal: Option<(Arc<EventCore>, u64)>,
    pub(super) extras: Option<Box<Extras>>,
    /// Whether the command takes so long that it does not share a fence with earlier commands.
    pub(super) is_long: bool,
    /// Whether the command's event took timestamps when the command was submitted.
    pub(super) is_timed: bool,
    /// Whether the list signals the native mirror of the command's event.
    pub(super) signals_mirror: bool,
    /// Whether the list signals the native mirror after all fences of the command. Then the list
    /// still uses the mirror after the command has ended.
    pub(super) retains_mirror: bool,
    /// Whether the list's thread is about to append the command or to call its function. No other
    /// thread may then do so.
    pub(super) is_claimed: bool,
    /// Whether the command ends as soon as all earlier commands have ended, because the list does
    /// no lasting work for it.
    pub(super) ends_with_previous: bool,
    /// Whether the list is known to have passed the command's waits.
    pub(super) has_started: bool,
    /// Whether the list may contain a part of the command for whose end there is no fence.
    pub(super) may_be_partial: bool,
}

#[derive(Default)]
pub(super) struct Extras {
    pub(super) staging: Staging,
    /// Commands of other lists that must end before this command starts.
    pub(super) after: Vec<Arc<CompletionFlag>>,
    /// A flag that is raised when the command has ended, if commands of other lists may wait for
    /// it.
    pub(super) completion: Option<Arc<CompletionFlag>>,
    /// The reason why the command fails: the driver has refused it, or memory was exhausted.
    pub(super) failure: Option<Error>,
}

impl Extras {
    /// Creates the extras of a command that runs after the commands of other lists in `after`. Also
    /// returns its completion flag, for which other lists can wait.
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

    /// Adds staging memory. If its allocation failed, the command fails when its turn comes.
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
    /// Creates a command from a submission. `number` is the number of its signal.
    #[inline]
    pub(super) fn new(
        submission: &mut Submission,
        number: Option<u64>,
        extras: Option<Box<Extras>>,
    ) -> Self {
        let signal = submission.signal.take().zip(number);
        // The program may enable or disable timestamps before the command ends.
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

    /// Returns whether the host must act before the list can continue with the command. Waiting for
    /// signals is not considered.
    pub(super) fn needs_host(&self) -> bool {
        let is_after = |extras: &Extras| extras.after.iter().any(|flag| !flag.is_raised());
        self.is_claimed
            || matches!(self.work, Work::Call(_))
            || self.extras.as_deref().is_some_and(is_after)
    }

    /// Returns whether the list waits for events of the driver before the command.
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

    /// Leaks the objects that the command uses, because the driver may access them at any time.
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

    /// Drops the objects that the command used, and completes its signal. This runs the program's
    /// code, so the caller must hold no lock. Returns the event if the list still uses its mirror.
    /// Unless `is_closed` is set, the queue may still get commands that signal the event.
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
                    // Prepares the next signal, because a submission must not wait for the reply of
                    // another process.
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

/// Completes signals that the list has seen, even if their submitters have not noticed them yet.
pub(super) fn complete_observed(waits: &[WaitPoint]) {
    let on_device = waits.iter().filter(|wait| wait.promise.is_some());
    for wait in on_device.filter(|wait| !is_revoked(wait)) {
        wait.event.complete_observed(wait.number);
    }
}

pub(super) fn is_decided(wait: &WaitPoint) -> bool {
    wait.event.outcome(wait.number) != Outcome::Pending
}

/// Returns whether a signal may never reach the device, because it failed or came from a list other
/// than the promised one. Other signals that have completed may reach a busy device late.
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
