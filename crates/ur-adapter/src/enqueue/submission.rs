//! How every command gets into its queue.

use crate::boundary::list;
use crate::event::{Event, Origin};
use crate::failure::{Failure, Result};
use crate::object::{Shared, from_handles};
use crate::queue::Queue;
use crosshandle::{Command, EventOptions};
use unified_runtime_sys::{ur_command_t, ur_event_handle_t, ur_queue_handle_t, ur_result_t};

/// The part that all enqueue calls have in common: a queue, what to wait for, and where the caller
/// wants the event.
pub(crate) struct Submission<'a> {
    queue: &'a Shared<Queue>,
    waits: &'a [ur_event_handle_t],
    event: *mut ur_event_handle_t,
    is_profiling: bool,
    is_low_power: bool,
}

impl<'a> Submission<'a> {
    /// # Errors
    /// `INVALID_NULL_HANDLE`, `INVALID_EVENT_WAIT_LIST`.
    ///
    /// # Safety
    /// The handle is null or a queue's; `waits` is null or points to `count` handles, each null or
    /// an event's; `event` is null or valid for a write; all that during `'a`.
    #[inline]
    pub(crate) unsafe fn new(
        queue: ur_queue_handle_t,
        count: u32,
        waits: *const ur_event_handle_t,
        event: *mut ur_event_handle_t,
    ) -> Result<Self> {
        let invalid = ur_result_t::UR_RESULT_ERROR_INVALID_EVENT_WAIT_LIST;
        // SAFETY: as promised to this function.
        unsafe {
            let queue = Shared::<Queue>::from_handle(queue)?;
            if waits.is_null() != (count == 0) {
                return Err(Failure::of(invalid));
            }
            let _ = from_handles::<Event>(waits, count, invalid)?;
            Ok(Self {
                queue,
                waits: list(waits, count as usize)?,
                event,
                is_profiling: queue.is_profiling(),
                is_low_power: queue.is_low_power(),
            })
        }
    }

    /// The event shall take timestamps, whatever the queue says.
    pub(crate) fn with_timestamps(mut self) -> Self {
        self.is_profiling = true;
        self
    }

    /// Waiting for the event shall sleep at once, if so `wanted`, or if the queue says so.
    #[inline]
    pub(crate) fn low_power(mut self, wanted: bool) -> Self {
        self.is_low_power |= wanted;
        self
    }

    /// The same with nothing to wait for.
    pub(super) fn without_waits(self) -> Self {
        Self { waits: &[], ..self }
    }

    pub(crate) fn queue(&self) -> &'a Shared<Queue> {
        self.queue
    }

    /// Whether the caller wants an event.
    pub(crate) fn wants_event(&self) -> bool {
        !self.event.is_null()
    }

    /// The events to wait for.
    #[inline]
    pub(crate) fn waits(&self) -> impl Iterator<Item = &'a Shared<Event>> + use<'a> {
        // SAFETY: `new` found all of them to be events' handles.
        self.waits
            .iter()
            .map(|handle| unsafe { &*handle.cast::<Shared<Event>>() })
    }

    /// The command, after what is to be waited for.
    ///
    /// # Errors
    /// `IN_EVENT_LIST_EXEC_STATUS` if some of that has failed already.
    #[inline]
    pub(crate) fn after_waits(&self, command: Command) -> Result<Command> {
        self.waits().try_fold(command, |command, event| {
            // What has happened need not be waited for.
            let is_done = event.inner().try_wait()?;
            Ok(if is_done {
                command
            } else {
                command.after(event.inner())
            })
        })
    }

    /// Submits the command after what is to be waited for, and gives the caller the event. A
    /// blocking call returns when the command is done.
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
        if self.wants_event() {
            let origin = Origin::Command {
                queue: self.queue.to_ref(),
                command: kind,
            };
            let event = Event::hand_out(self.queue.context().clone(), event, origin);
            // SAFETY: not null, so valid for a write by the promise made to `new`.
            unsafe { self.event.write(event) };
        }
        Ok(())
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

    /// An event for one command.
    pub(super) fn create_event(&self) -> Result<crosshandle::Event> {
        let options = EventOptions::new()
            .shareable(false)
            .profiling(self.is_profiling)
            .low_power(self.is_low_power);
        let context = self.queue.context().on(self.queue.device())?;
        Ok(context.create_event_with(options)?)
    }

    /// Submits a barrier after what is to be waited for, and lets it signal an event that the
    /// caller has already.
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
