//! Submission of commands to queues, or to the captures of queues.

use crate::abi::boundary::{Argument2, Call, OutPointer};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{HandleList, Handles, Ref, Shared};
use crate::context::Context;
use crate::discovery::Device;
use crate::enqueue::graph::capture::{Capture, Order};
use crate::event::{Event, Origin};
use crate::memory::buffer::BufferUse;
use crate::queue::Queue;
use crate::queue::destination::Destination;
use crosshandle::{Command, EventOptions};
use std::sync::Arc;
use unified_runtime_sys::{ur_command_t, ur_event_handle_t, ur_result_t};

/// An argument of an entry point: the events that a command waits for. The call fails with
/// `INVALID_EVENT_WAIT_LIST` if only one of the count and the address is zero.
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
        // SAFETY: the caller upholds this function's contract.
        let events = unsafe { Handles::<Event>::read(count, first, call) };
        events.map_err(|failure| failure.with_result(invalid))
    }
}

/// The common part of all enqueue calls: a queue, the events to wait for, and the address for the
/// command's event.
pub(crate) struct Submission<'a> {
    queue: &'a Shared<Queue>,
    waits: HandleList<'a, Event>,
    event: Option<OutPointer<'a, ur_event_handle_t>>,
    /// The capture that records the command. `None` if the queue runs the command.
    capture: Option<Arc<Capture>>,
    order: Order,
    is_profiling: bool,
    is_low_power: bool,
}

impl<'a> Submission<'a> {
    /// Begins an enqueue call.
    ///
    /// # Errors
    /// Returns the errors of [`Capture::of_command`].
    #[inline]
    pub(crate) fn new(
        queue: &'a Shared<Queue>,
        waits: HandleList<'a, Event>,
        event: Option<OutPointer<'a, ur_event_handle_t>>,
    ) -> Result<Self> {
        let mut capture = queue.capture_slot().capture();
        if capture.is_some() || waits.iter().any(|event| event.node().is_some()) {
            let nodes = waits.iter().filter_map(|event| event.node());
            capture = Capture::of_command(queue, capture, nodes)?;
        }
        Ok(Self {
            queue,
            waits,
            event,
            capture,
            order: Order::default(),
            is_profiling: queue.is_profiling(),
            is_low_power: queue.is_low_power(),
        })
    }

    /// Returns the capture that records the command, if any.
    pub(crate) fn capture(&self) -> Option<&Arc<Capture>> {
        self.capture.as_ref()
    }

    /// Fails in a capture. Entry points call this before an action that cannot be recorded.
    ///
    /// # Errors
    /// Returns `GRAPH_CAPTURE_UNSUPPORTED`, which invalidates the capture.
    pub(crate) fn not_captured(self, why: &'static str) -> Result<Self> {
        match &self.capture {
            Some(capture) => Err(capture.refuse(why)),
            None => Ok(self),
        }
    }

    /// Orders the command after all earlier submissions.
    #[inline]
    pub(super) fn after_earlier(mut self) -> Self {
        self.order.after_earlier = true;
        self
    }

    /// Orders the command after all earlier submissions, unless there are events to wait for.
    #[inline]
    pub(super) fn after_list_or_all(self) -> Self {
        match self.waits.is_empty() {
            true => self.after_earlier(),
            false => self,
        }
    }

    /// Orders all later submissions after the command.
    #[inline]
    pub(super) fn before_later(mut self) -> Self {
        self.order.before_later = true;
        self
    }

    /// Makes the event record timestamps, regardless of the queue's flags.
    pub(crate) fn with_timestamps(mut self) -> Self {
        self.is_profiling = true;
        self
    }

    /// Makes threads that wait for the event sleep at once instead of polling, if `wanted` is true.
    /// The queue's flags can require this too.
    #[inline]
    pub(crate) fn low_power(mut self, wanted: bool) -> Self {
        self.is_low_power |= wanted;
        self
    }

    /// Orders the command after all earlier submissions, and ignores the events to wait for. Later
    /// submissions do not wait for the command.
    pub(super) fn end_of_earlier(self) -> Self {
        let (waits, order) = (HandleList::empty(), Order::default());
        let this = Self {
            waits,
            order,
            ..self
        };
        this.after_earlier()
    }

    pub(crate) fn queue(&self) -> &'a Shared<Queue> {
        self.queue
    }

    pub(crate) fn wants_event(&self) -> bool {
        self.event.is_some()
    }

    /// Adds the command's order and the events that it waits for.
    ///
    /// # Errors
    /// Returns `IN_EVENT_LIST_EXEC_STATUS` if one of the events has already failed.
    #[inline]
    pub(super) fn ordered(&self, mut command: Command) -> Result<Command> {
        if self.order.after_earlier {
            command = command.after_earlier();
        }
        if self.order.before_later {
            command = command.before_later();
        }
        self.waits.iter().try_fold(command, |command, event| {
            // A complete event is left out.
            let event = event.inner()?;
            let is_done = event.try_wait_submitted()?;
            Ok(if is_done {
                command
            } else {
                command.after_submitted(event)
            })
        })
    }

    /// Records commands in the capture, in order. The first command follows the events to wait for.
    /// The caller gets an event that stands for the node of the last command.
    #[cold]
    fn record(
        &self,
        capture: &Arc<Capture>,
        kind: ur_command_t,
        commands: Vec<Command>,
    ) -> Result<()> {
        let outside = self.waits.iter().filter_map(|event| event.inner().ok());
        capture.wait_for(outside.map(|event| (event.clone(), event.submitted())))?;
        let inside = self.waits.iter().filter_map(|event| event.node().cloned());
        let node = capture.record(self.queue, kind, commands, inside, self.order)?;
        let Some(place) = &self.event else {
            return Ok(());
        };
        place.put(Event::hand_out_captured(self.queue.to_ref(), kind, node))
    }

    /// Submits the command as [`submit`](Self::submit) does, and returns its event. The event is
    /// created even if the caller does not want it.
    pub(crate) fn submit_and_keep(
        self,
        kind: ur_command_t,
        command: Command,
        kept: &mut Option<crosshandle::Event>,
    ) -> Result<()> {
        let command = self.ordered(command)?;
        let event = self.create_event()?;
        self.queue.inner().submit(command.signal(&event))?;
        // The event is kept even if the caller does not get it, because the command has been
        // submitted.
        *kept = Some(event.clone());
        self.give(kind, event, None)
    }

    /// Writes the handle of the command's event to the caller's memory, if the caller wants the
    /// event.
    fn give(
        &self,
        kind: ur_command_t,
        event: crosshandle::Event,
        began: Option<crosshandle::Event>,
    ) -> Result<()> {
        let Some(place) = &self.event else {
            return Ok(());
        };
        let origin = Origin::Command {
            queue: self.queue.to_ref(),
            command: kind,
            began,
        };
        place.put(Event::hand_out(self.queue.context().clone(), event, origin))
    }

    /// Submits the command after the events to wait for, and gives the caller its event. A blocking
    /// call returns when the command is done.
    ///
    /// # Errors
    /// Returns errors of the queue. In a capture, `GRAPH_CAPTURE_UNSUPPORTED` for a blocking call,
    /// and the errors of [`Capture::record`].
    pub(crate) fn submit(
        self,
        kind: ur_command_t,
        command: Command,
        is_blocking: bool,
    ) -> Result<()> {
        if let Some(capture) = &self.capture {
            return match is_blocking {
                true => {
                    Err(capture
                        .refuse("a capturing queue runs no commands: submit without waiting"))
                }
                false => self.record(capture, kind, vec![command]),
            };
        }
        let command = self.ordered(command)?;
        if !self.wants_event() && !is_blocking {
            return Ok(self.queue.inner().submit(command)?);
        }
        let event = self.create_event()?;
        self.queue.inner().submit(command.signal(&event))?;
        if is_blocking {
            event.wait()?;
        }
        self.give(kind, event, None)
    }

    /// Submits several commands as one. They run in order, even in an out-of-order queue.
    pub(super) fn submit_all(self, kind: ur_command_t, mut commands: Vec<Command>) -> Result<()> {
        if let Some(capture) = &self.capture {
            return self.record(capture, kind, commands);
        }
        let Some(last) = commands.pop() else {
            return Ok(());
        };
        if commands.is_empty() {
            return self.submit(kind, last, false);
        }
        let step = self.create_event()?;
        for command in commands {
            let command = self.ordered(command)?.after_submitted(&step).signal(&step);
            self.queue.inner().submit(command)?;
        }
        self.submit(kind, last.after_submitted(&step), false)
    }

    /// Submits the parts of a run as if they were one command.
    ///
    /// The parts run in order and after the latest run, even in an out-of-order queue. Each part
    /// can signal an event. If the caller may query the start time, another event records the
    /// start.
    pub(super) fn submit_parts(
        self,
        kind: ur_command_t,
        mut parts: Vec<(Command, Option<crosshandle::Event>)>,
        latest: &mut Option<crosshandle::Event>,
    ) -> Result<()> {
        let began = match self.is_profiling && self.wants_event() {
            true => Some(self.create_event()?),
            false => None,
        };
        if let Some(began) = &began {
            parts.insert(0, (Command::marker(), Some(began.clone())));
        }
        let step = self.create_event()?;
        let queue = self.queue.inner();
        for (index, (mut command, signal)) in parts.into_iter().enumerate() {
            if index == 0 {
                command = self.ordered(command)?;
            }
            // If the latest run fails, this run must still start.
            if let Some(before) = latest.as_ref()
                && (index > 0 || matches!(before.try_wait_submitted(), Ok(false)))
            {
                command = command.after_submitted(before);
            }
            let signal = signal.unwrap_or_else(|| step.clone());
            queue.submit(command.signal(&signal))?;
            *latest = Some(signal);
        }
        let done = self.create_event()?;
        let mut end = Command::marker();
        if let Some(before) = latest.as_ref() {
            end = end.after_submitted(before);
        }
        queue.submit(end.signal(&done))?;
        *latest = Some(done.clone());
        self.give(kind, done, began)
    }

    pub(super) fn create_event(&self) -> Result<crosshandle::Event> {
        let options = EventOptions::new()
            .shareable(false)
            .profiling(self.is_profiling)
            .low_power(self.is_low_power);
        let context = self.queue.context().on(self.queue.device())?;
        Ok(context.create_event_with(options)?)
    }

    /// Submits a barrier after the events to wait for. The barrier signals the caller's event.
    ///
    /// # Errors
    /// Returns errors of the queue, and `GRAPH_CAPTURE_UNSUPPORTED` in a capture.
    #[inline]
    pub(super) fn signal(self, event: &Event) -> Result<()> {
        if let Some(capture) = &self.capture {
            return Err(capture.refuse(
                "nodes cannot signal events: signal the event after the graph's runs, with a barrier",
            ));
        }
        let inner = event.inner()?;
        event.prepare_signal(self.queue);
        let queue = self.queue.inner();
        if self.waits.is_empty() {
            return Ok(queue.signal(inner)?);
        }
        let command = self.ordered(Command::marker().before_later())?;
        Ok(queue.submit(command.signal(inner))?)
    }
}

impl Destination for Submission<'_> {
    fn context(&self) -> &Ref<Context> {
        self.queue.context()
    }

    fn device(&self) -> &Ref<Device> {
        self.queue.device()
    }

    fn is_recording(&self) -> bool {
        self.capture.is_some()
    }

    fn note(&self, buffer: BufferUse<'_>) {
        match &self.capture {
            Some(capture) => capture.note(&buffer),
            None => buffer.by(self.queue),
        }
    }
}
