//! The way of every command into its queue.

use crate::abi::boundary::{Argument2, Call, OutPointer};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{HandleList, Handles, Shared};
use crate::event::{Event, Origin};
use crate::queue::Queue;
use crosshandle::{Command, EventOptions};
use unified_runtime_sys::{ur_command_t, ur_event_handle_t, ur_result_t};

/// An argument of an entry point: the events that a command waits for. It is
/// `INVALID_EVENT_WAIT_LIST` for events that are counted but not there, or the other way round.
pub(crate) struct WaitList;

impl Argument2 for WaitList {
    type A = u32;
    type B = *const ur_event_handle_t;
    type Value<'a> = HandleList<'a, Event>;

    #[inline]
    unsafe fn read<'a>(count: u32, first: Self::B, call: &'a Call) -> Result<Self::Value<'a>> {
        let invalid = ur_result_t::UR_RESULT_ERROR_INVALID_EVENT_WAIT_LIST;
        if first.is_null() != (count == 0) {
            return Err(Failure::of(invalid));
        }
        // SAFETY: as promised to this function.
        let events = unsafe { Handles::<Event>::read(count, first, call) };
        events.map_err(|failure| failure.with_result(invalid))
    }
}

/// The part that all enqueue calls have in common: a queue, the events to wait for, and where the
/// caller wants the command's event.
pub(crate) struct Submission<'a> {
    queue: &'a Shared<Queue>,
    waits: HandleList<'a, Event>,
    event: Option<OutPointer<'a, ur_event_handle_t>>,
    is_profiling: bool,
    is_low_power: bool,
}

impl<'a> Submission<'a> {
    /// Begins a call.
    #[inline]
    pub(crate) fn new(
        queue: &'a Shared<Queue>,
        waits: HandleList<'a, Event>,
        event: Option<OutPointer<'a, ur_event_handle_t>>,
    ) -> Self {
        Self {
            queue,
            waits,
            event,
            is_profiling: queue.is_profiling(),
            is_low_power: queue.is_low_power(),
        }
    }

    /// Lets the event take timestamps, whatever the queue says.
    pub(crate) fn with_timestamps(mut self) -> Self {
        self.is_profiling = true;
        self
    }

    /// Lets waiting for the event sleep at once, if that is `wanted` or the queue says so.
    #[inline]
    pub(crate) fn low_power(mut self, wanted: bool) -> Self {
        self.is_low_power |= wanted;
        self
    }

    /// Forgets the events to wait for.
    pub(super) fn without_waits(self) -> Self {
        let waits = HandleList::empty();
        Self { waits, ..self }
    }

    /// Returns the queue.
    pub(crate) fn queue(&self) -> &'a Shared<Queue> {
        self.queue
    }

    /// Returns whether the caller wants an event.
    pub(crate) fn wants_event(&self) -> bool {
        self.event.is_some()
    }

    /// Returns the command, after the events to wait for.
    ///
    /// # Errors
    /// `IN_EVENT_LIST_EXEC_STATUS` if one of them has failed already.
    #[inline]
    pub(crate) fn after_waits(&self, command: Command) -> Result<Command> {
        self.waits.iter().try_fold(command, |command, event| {
            // An event that is complete need not be waited for.
            let is_done = event.inner().try_wait()?;
            Ok(if is_done {
                command
            } else {
                command.after(event.inner())
            })
        })
    }

    /// Submits the command as [`submit`](Self::submit) does, and returns its event, which it has whether the
    /// caller wants it or not.
    pub(crate) fn submit_and_keep(
        self,
        kind: ur_command_t,
        command: Command,
        kept: &mut Option<crosshandle::Event>,
    ) -> Result<()> {
        let command = self.after_waits(command)?;
        let event = self.create_event()?;
        self.queue.inner().submit(command.signal(&event))?;
        // Even if the caller gets none: the command runs.
        *kept = Some(event.clone());
        self.give(kind, event)
    }

    /// Gives the caller the command's event, if he wants it.
    fn give(&self, kind: ur_command_t, event: crosshandle::Event) -> Result<()> {
        let Some(place) = &self.event else {
            return Ok(());
        };
        let origin = Origin::Command {
            queue: self.queue.to_ref(),
            command: kind,
        };
        place.put(Event::hand_out(self.queue.context().clone(), event, origin))
    }

    /// Submits the command after the events to wait for, and gives the caller its event. A blocking
    /// call returns when the command is done.
    pub(crate) fn submit(
        self,
        kind: ur_command_t,
        command: Command,
        is_blocking: bool,
    ) -> Result<()> {
        let command = self.after_waits(command)?;
        if !self.wants_event() && !is_blocking {
            return Ok(self.queue.inner().submit(command)?);
        }
        let event = self.create_event()?;
        self.queue.inner().submit(command.signal(&event))?;
        if is_blocking {
            event.wait()?;
        }
        self.give(kind, event)
    }

    /// Submits commands, one after the other whatever order the queue keeps, as if they were one.
    pub(super) fn submit_all(self, kind: ur_command_t, mut commands: Vec<Command>) -> Result<()> {
        let Some(last) = commands.pop() else {
            return Ok(());
        };
        if commands.is_empty() {
            return self.submit(kind, last, false);
        }
        let step = self.create_event()?;
        for command in commands {
            let command = self.after_waits(command)?.after(&step).signal(&step);
            self.queue.inner().submit(command)?;
        }
        self.submit(kind, last.after(&step), false)
    }

    /// Returns a new event for one command.
    pub(super) fn create_event(&self) -> Result<crosshandle::Event> {
        let options = EventOptions::new()
            .shareable(false)
            .profiling(self.is_profiling)
            .low_power(self.is_low_power);
        let context = self.queue.context().on(self.queue.device())?;
        Ok(context.create_event_with(options)?)
    }

    /// Submits a barrier after the events to wait for, and lets it signal an event that the caller has
    /// already.
    #[inline]
    pub(super) fn signal(self, event: &Event) -> Result<()> {
        event.prepare_signal(self.queue);
        let queue = self.queue.inner();
        if self.waits.is_empty() {
            return Ok(queue.signal(event.inner())?);
        }
        let command = self.after_waits(Command::marker().before_later())?;
        Ok(queue.submit(command.signal(event.inner()))?)
    }
}
