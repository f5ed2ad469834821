//! Submission of commands to a queue, or to the capture of that queue.

use crate::abi::boundary::{Argument2, Call, OutPointer};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{HandleList, Handles, Ref, Shared};
use crate::context::Context;
use crate::discovery::Device;
use crate::enqueue::graph::capture::{Capture, CapturedNode, Order, Predecessors};
use crate::event::{Event, Origin};
use crate::memory::replicas::{MemoryUse, Tracked};
use crate::queue::Queue;
use crate::queue::destination::Destination;
use crosshandle::{Command, EventOptions};
use std::cell::RefCell;
use std::sync::{Arc, MutexGuard};
use unified_runtime_sys::{ur_command_t, ur_event_handle_t, ur_result_t};

/// An argument of an entry point: the events for which a command waits.
///
/// The call fails with `INVALID_EVENT_WAIT_LIST` if the address is null and the count is not 0. It
/// also fails if the count is 0 and the address is not null.
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

/// The arguments that all enqueue calls share: the queue, the wait events, and the memory for the
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
    moves: RefCell<Moves<'a>>,
}

/// The memory objects of a command whose contents move between devices.
#[derive(Default)]
struct Moves<'a> {
    /// The events of moves that the command waits for.
    waits: Vec<crosshandle::Event>,
    /// The objects that must know the command's event.
    objects: Vec<Arc<dyn Tracked>>,
    /// The context's lock for moves. It is held from the first move until the command is submitted.
    lock: Option<MutexGuard<'a, ()>>,
}

impl<'a> Submission<'a> {
    /// Collects the arguments of an enqueue call, and determines the capture that records the
    /// command.
    ///
    /// # Errors
    /// Returns the same errors as [`Capture::of_command`].
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
            moves: RefCell::default(),
        })
    }

    /// Returns the capture that records the command. Returns `None` if the queue runs the command.
    pub(crate) fn capture(&self) -> Option<&Arc<Capture>> {
        self.capture.as_ref()
    }

    /// Checks that no capture records the command. Entry points call this function before an action
    /// that graphs cannot record.
    ///
    /// # Errors
    /// Returns `GRAPH_CAPTURE_UNSUPPORTED` if a capture records the command. The error invalidates
    /// the capture.
    pub(crate) fn not_captured(self, why: &'static str) -> Result<Self> {
        match &self.capture {
            Some(capture) => Err(capture.refuse(why)),
            None => Ok(self),
        }
    }

    /// Orders the command after all earlier submissions to the queue.
    #[inline]
    pub(super) fn after_earlier(mut self) -> Self {
        self.order.after_earlier = true;
        self
    }

    /// Orders the command after its wait events. If there are none, orders it after all earlier
    /// submissions to the queue.
    #[inline]
    pub(super) fn after_list_or_all(self) -> Self {
        match self.waits.is_empty() {
            true => self.after_earlier(),
            false => self,
        }
    }

    /// Orders all later submissions to the queue after the command.
    #[inline]
    pub(super) fn before_later(mut self) -> Self {
        self.order.before_later = true;
        self
    }

    /// Makes the command's event record timestamps, regardless of the queue's flags.
    pub(crate) fn with_timestamps(mut self) -> Self {
        self.is_profiling = true;
        self
    }

    /// If `wanted` is true, threads that wait for the command's event sleep immediately instead of
    /// spinning. If the queue's flags already require this, `wanted` has no effect.
    #[inline]
    pub(crate) fn low_power(mut self, wanted: bool) -> Self {
        self.is_low_power |= wanted;
        self
    }

    /// Orders the command after all earlier submissions to the queue, and discards the wait events.
    /// Later submissions do not wait for the command.
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

    /// Returns whether the caller requests the command's event.
    pub(crate) fn wants_event(&self) -> bool {
        self.event.is_some()
    }

    /// Applies the requested order and the wait events to a command.
    ///
    /// # Errors
    /// Returns `IN_EVENT_LIST_EXEC_STATUS` if a wait event has already failed.
    #[inline]
    pub(super) fn ordered(&self, mut command: Command) -> Result<Command> {
        if self.order.after_earlier {
            command = command.after_earlier();
        }
        if self.order.before_later {
            command = command.before_later();
        }
        let moves = self.moves.borrow();
        command = moves.waits.iter().fold(command, Command::after_submitted);
        self.waits.iter().try_fold(command, |command, event| {
            // A complete event needs no wait.
            let inner = event.inner()?;
            Ok(match event.pending(inner)? {
                None => command,
                Some(latest) => command.after_value(inner, latest),
            })
        })
    }

    /// Passes the event of the submitted command to the memory objects whose contents move between
    /// devices. Releases the context's lock for moves.
    fn settle(&self, event: &crosshandle::Event) {
        let moves = self.moves.take();
        for object in &moves.objects {
            object.used(event);
        }
    }

    /// Records commands in the capture, in order. The first command follows the wait events. The
    /// caller receives an event that represents the node of the last command.
    #[cold]
    fn record(
        &self,
        capture: &Arc<Capture>,
        kind: ur_command_t,
        commands: Vec<Command>,
    ) -> Result<()> {
        let node = self.record_node(capture, kind, commands, self.order)?;
        let Some(place) = &self.event else {
            return Ok(());
        };
        place.put(Event::hand_out_captured(self.queue.to_ref(), kind, node))
    }

    /// Records commands as [`record`](Self::record) does, in an order that replaces the
    /// submission's. Returns the node of the last command.
    fn record_node(
        &self,
        capture: &Arc<Capture>,
        kind: ur_command_t,
        commands: Vec<Command>,
        order: Order,
    ) -> Result<CapturedNode> {
        let mut before = Predecessors::default();
        let mut outside = Vec::new();
        for event in self.waits.iter() {
            if let Some(node) = event.node() {
                before.nodes.push(node);
                continue;
            }
            let inner = event.inner()?;
            match event.cursor() {
                Some(cursor) => before.next.push(cursor),
                None => outside.push((inner.clone(), inner.submitted())),
            }
        }
        capture.wait_for(outside)?;
        capture.record(self.queue, kind, commands, before, order)
    }

    /// Submits the command, and stores its event in `kept`. The event is created even if the caller
    /// does not request it. The command must not be captured. If the command runs in parts and the
    /// caller's event records timestamps, an additional event records the start.
    pub(crate) fn submit_and_keep(
        self,
        kind: ur_command_t,
        command: Command,
        runs_in_parts: bool,
        kept: &mut Option<crosshandle::Event>,
    ) -> Result<()> {
        let mut command = self.ordered(command)?;
        let mut began = None;
        if runs_in_parts && self.is_profiling && self.wants_event() {
            let event = began.insert(self.create_event()?);
            let start = self.ordered(Command::marker())?;
            self.queue.inner().submit(start.signal(event))?;
            command = command.after_submitted(event);
        }
        let event = self.create_event()?;
        self.queue.inner().submit(command.signal(&event))?;
        self.settle(&event);
        // The event is stored before the caller receives it. If that fails, the command has been
        // submitted all the same.
        *kept = Some(event.clone());
        self.give(kind, event, began)
    }

    /// Writes the handle of the command's event to the caller's memory. Does nothing if the caller
    /// does not request the event.
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

    /// Submits the command after the wait events. If the caller requests an event, the caller
    /// receives the command's event. If `is_blocking` is true, the function waits until the command
    /// is complete.
    ///
    /// # Errors
    /// Returns an error from `crosshandle` if the queue does not accept the command or, in a
    /// blocking call, if the command fails. In a capture, returns `GRAPH_CAPTURE_UNSUPPORTED` for a
    /// blocking call. Otherwise returns the same errors as [`Capture::record`].
    pub(crate) fn submit(
        self,
        kind: ur_command_t,
        command: Command,
        is_blocking: bool,
    ) -> Result<()> {
        if let Some(capture) = &self.capture {
            return match is_blocking {
                true => Err(capture.refuse(
                    "a queue that is being captured runs no commands: submit without blocking",
                )),
                false => self.record(capture, kind, vec![command]),
            };
        }
        let command = self.ordered(command)?;
        if !self.wants_event() && !is_blocking && self.moves.borrow().objects.is_empty() {
            return Ok(self.queue.inner().submit(command)?);
        }
        let event = self.create_event()?;
        self.queue.inner().submit(command.signal(&event))?;
        self.settle(&event);
        if is_blocking {
            event.wait()?;
        }
        self.give(kind, event, None)
    }

    /// Submits several commands that together act as one. They run in order, even in an
    /// out-of-order queue.
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

    /// Submits the parts of a command buffer run, which together act as one command.
    ///
    /// The parts run in order, even in an out-of-order queue. They start after the previous run of
    /// the same command buffer has ended. Each part may signal an event. If the caller's event
    /// records timestamps, an additional event records the start of the run.
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
            // The first part waits only for a latest run that is pending. A failed latest run must
            // not prevent this run from starting.
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
        self.settle(&done);
        *latest = Some(done.clone());
        self.give(kind, done, began)
    }

    /// Creates an event that a command of this submission signals.
    pub(super) fn create_event(&self) -> Result<crosshandle::Event> {
        let options = EventOptions::new()
            .shareable(false)
            .profiling(self.is_profiling)
            .low_power(self.is_low_power);
        let context = self.queue.context().on(self.queue.device())?;
        Ok(context.create_event_with(options)?)
    }

    /// Submits a barrier that waits for the wait events and signals `event`. If the queue is being
    /// captured, each run of the graph signals the event.
    ///
    /// # Errors
    /// Returns an error from `crosshandle` if the queue does not accept the barrier. In a capture,
    /// returns the same errors as [`Capture::record`].
    #[inline]
    pub(super) fn signal(self, event: &Event) -> Result<()> {
        let inner = event.inner()?;
        event.prepare_signal(self.queue);
        if let Some(capture) = &self.capture {
            let order = Order {
                after_earlier: self.waits.is_empty(),
                before_later: true,
            };
            let commands = vec![Command::marker().signal(inner)];
            let kind = ur_command_t::UR_COMMAND_EVENTS_WAIT_WITH_BARRIER;
            let node = self.record_node(capture, kind, commands, order)?;
            event.set_node(Some(node));
            return Ok(());
        }
        let queue = self.queue.inner();
        if self.waits.is_empty() {
            queue.signal(inner)?;
        } else {
            let command = self.ordered(Command::marker().before_later())?;
            queue.submit(command.signal(inner))?;
        }
        event.set_node(None);
        Ok(())
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

    fn note(&self, used: MemoryUse) -> Result<()> {
        if let Some(capture) = &self.capture {
            capture.note(used);
            return Ok(());
        }
        let moves = &mut *self.moves.borrow_mut();
        let is_moving = used.object.is_moving();
        if is_moving && moves.lock.is_none() {
            moves.lock = Some(self.queue.context().state().moving.lock());
        }
        moves.waits.extend(used.object.prepare(self.queue, &used)?);
        if is_moving {
            moves.objects.push(used.object);
        }
        Ok(())
    }
}
