//! Captures. While a queue is being captured, its submissions become nodes of a graph and do not
//! run.
//!
//! A capture begins in one queue, its *origin*. Another queue with the same context and device
//! joins the capture when one of its commands waits for an event from the capture (a *fork*). When
//! the origin ends the capture, all queues leave it. Before that, commands of the origin must
//! follow all commands that the other queues have recorded (a *join*).
//!
//! A node follows the nodes for whose events its command waits, and the nodes that precede it in
//! its queue's order. If a command waits for an event from outside the capture, each run of the
//! whole graph waits for one signal of that event: the latest signal when the command was recorded.
//! If other processes may signal the event, the node waits instead, in each run for the next signal.
//!
//! A reusable event that a captured command signals represents that command's node until the
//! capture ends. Each run signals the event again.

use super::Graph;
use super::recording::{Recording, Waits};
use super::slot::CaptureSlot;
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::abi::object::Ref;
use crate::context::Context;
use crate::discovery::Device;
use crate::memory::replicas::MemoryUse;
use crate::queue::Queue;
use crosshandle::graph::SignalCursor;
use crosshandle::{Command, Error, Event};
use std::borrow::Cow;
use std::mem;
use std::sync::{Arc, Weak};
use unified_runtime_sys::{ur_command_t, ur_result_t};

/// A capture that is in progress or has ended.
pub(crate) struct Capture {
    context: Ref<Context>,
    device: Ref<Device>,
    graph: Ref<Graph>,
    /// The program created the graph if this field is true. Otherwise the capture created it.
    is_programs: bool,
    origin: Weak<CaptureSlot>,
    state: Lock<State>,
}

/// The graph node that an event represents.
#[derive(Clone)]
pub(crate) struct CapturedNode {
    capture: Weak<Capture>,
    index: u32,
}

/// The order of a command relative to other commands in its queue.
#[derive(Clone, Copy, Default)]
pub(crate) struct Order {
    /// Whether the command follows all earlier submissions to the queue.
    pub(crate) after_earlier: bool,
    /// Whether all later submissions to the queue follow the command.
    pub(crate) before_later: bool,
}

/// What a captured command waits for.
#[derive(Default)]
pub(crate) struct Predecessors<'a> {
    pub(crate) nodes: Vec<CapturedNode>,
    /// In each run, the command waits for the next signal of each cursor.
    pub(crate) next: Vec<&'a SignalCursor>,
}

struct State {
    /// The recorded graph. `None` after the capture has ended.
    recorded: Option<Recorded>,
    /// Whether a command could not be recorded. The graph would be incomplete, so the capture
    /// fails.
    is_invalidated: bool,
    members: Vec<Member>,
}

/// A graph during its capture and afterwards.
pub(crate) struct Recorded {
    pub(super) recording: Recording,
    pub(super) nodes: Vec<Entry>,
}

/// The properties of a node, except its command.
pub(super) struct Entry {
    node: crosshandle::graph::Node,
    pub(super) kind: ur_command_t,
    /// The index of the node's queue in the capture. The origin has index 0.
    pub(super) queue: u32,
    pub(super) after: Vec<u32>,
}

/// A queue in the capture, and the nodes that the queue's next command may have to follow.
struct Member {
    slot: Weak<CaptureSlot>,
    /// The latest node that all later nodes from this queue follow.
    barrier: Option<u32>,
    /// The nodes since the barrier that later nodes from this queue do not follow automatically. A
    /// barrier that waits only for specific events does not clear this list.
    since: Vec<u32>,
}

impl Member {
    fn new(slot: Weak<CaptureSlot>) -> Self {
        Self {
            slot,
            barrier: None,
            since: Vec::new(),
        }
    }
}

impl CapturedNode {
    /// Returns whether the capture of the node has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.capture
            .upgrade()
            .is_none_or(|capture| capture.is_over())
    }
}

impl Capture {
    /// Begins a capture in a queue.
    ///
    /// # Errors
    /// Returns `INVALID_OPERATION` if the queue is already being captured. Otherwise returns the
    /// same errors as [`Graph::begin`].
    pub(super) fn begin(queue: &Queue, graph: Ref<Graph>, is_programs: bool) -> Result<()> {
        let recording = Recording::new(queue.context().on(queue.device())?);
        let slot = queue.capture_slot();
        let origin = Arc::downgrade(slot);
        let capture = Arc::new(Self {
            context: queue.context().clone(),
            device: queue.device().clone(),
            graph,
            is_programs,
            origin: origin.clone(),
            state: Lock::new(State {
                recorded: Some(Recorded {
                    recording,
                    nodes: Vec::new(),
                }),
                is_invalidated: false,
                members: vec![Member::new(origin)],
            }),
        });
        if !slot.join(&capture) {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_OPERATION,
                "this queue is already being captured",
            ));
        }
        capture
            .graph
            .begin(&capture)
            .inspect_err(|_| slot.leave(&capture))
    }

    /// Ends the capture of a queue. Returns the graph, and whether the program created the graph.
    ///
    /// # Errors
    /// Returns `COMMAND_LIST_NOT_CAPTURING` if the queue is not being captured, or if another
    /// thread ends the capture at the same time. Returns `INVALID_OPERATION` if the queue is not
    /// the origin. Returns `GRAPH_CAPTURE_INVALIDATED` if a command could not be recorded, and
    /// `GRAPH_UNJOINED_FORKS` if a queue was not joined. The capture has ended after the last two
    /// errors.
    pub(super) fn end(queue: &Queue) -> Result<(Ref<Graph>, bool)> {
        let slot = queue.capture_slot();
        let capture = slot.capture().ok_or_else(not_capturing)?;
        if !capture.is_origin(slot) {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_OPERATION,
                "another queue is the origin of this capture, and must end it",
            ));
        }
        let closed = capture.close().ok_or_else(not_capturing)?;
        let recorded = closed.inspect_err(|_| capture.graph.invalidate())?;
        capture.graph.fill(recorded);
        Ok((capture.graph.clone(), capture.is_programs))
    }

    /// Ends the capture, and removes all queues from it. Returns the recorded graph. Returns `None`
    /// if the capture has already ended.
    fn close(self: &Arc<Self>) -> Option<Result<Recorded>> {
        let (recorded, is_invalidated, members) = {
            let mut state = self.state.lock();
            let recorded = state.recorded.take()?;
            (
                recorded,
                state.is_invalidated,
                mem::take(&mut state.members),
            )
        };
        for slot in members.iter().filter_map(|member| member.slot.upgrade()) {
            slot.leave(self);
        }
        Some(match is_invalidated {
            true => Err(invalidated()),
            false => recorded.joined(),
        })
    }

    /// Ends the capture because its origin queue was dropped.
    pub(super) fn abandon(self: &Arc<Self>) {
        if self.close().is_some() {
            self.graph.invalidate();
        }
    }

    /// Returns whether the capture began in the queue of this slot.
    pub(super) fn is_origin(&self, slot: &CaptureSlot) -> bool {
        std::ptr::eq(self.origin.as_ptr(), slot)
    }

    pub(super) fn graph(&self) -> &Ref<Graph> {
        &self.graph
    }

    /// Calls `look` with the recorded nodes. The argument is `None` if the capture has ended.
    pub(super) fn look<R>(&self, look: impl FnOnce(Option<&Recorded>) -> R) -> R {
        look(self.state.lock().recorded.as_ref())
    }

    /// Returns the capture that must record a command. Returns `None` if the command is to run.
    ///
    /// The capture is the queue's own one, or the one to which the command's wait events belong. In
    /// the second case, the queue joins the capture when it records the command.
    ///
    /// # Errors
    /// - `GRAPH_INTERNAL_EVENT` if a wait event belongs to a capture that has ended.
    /// - `GRAPH_CAPTURE_MERGE_ATTEMPT` if wait events belong to another capture.
    /// - `GRAPH_CAPTURE_UNSUPPORTED` if the queue has another context or device than the capture.
    /// - `GRAPH_CAPTURE_INVALIDATED` if the capture was invalidated earlier.
    pub(crate) fn of_command(
        queue: &Queue,
        own: Option<Arc<Self>>,
        nodes: impl Iterator<Item = CapturedNode>,
    ) -> Result<Option<Arc<Self>>> {
        let mut found = own;
        for node in nodes {
            let theirs = node.capture.upgrade();
            match (&found, theirs.filter(|theirs| !theirs.is_over())) {
                (Some(found), Some(theirs)) if Arc::ptr_eq(found, &theirs) => {}
                (None, Some(theirs)) => found = Some(theirs),
                (Some(found), Some(_)) => {
                    return Err(found.fail(
                        ur_result_t::UR_RESULT_ERROR_GRAPH_CAPTURE_MERGE_ATTEMPT,
                        "this event belongs to another capture, and captures cannot be merged",
                    ));
                }
                (Some(found), None) => {
                    found.invalidate();
                    return Err(internal_event());
                }
                (None, None) => return Err(internal_event()),
            }
        }
        if let Some(found) = &found {
            found.check(queue)?;
        }
        Ok(found)
    }

    /// Checks that the capture can record commands from a queue.
    fn check(&self, queue: &Queue) -> Result<()> {
        self.state.lock().recorded()?;
        let is_same = std::ptr::eq(&**queue.context(), &*self.context)
            && std::ptr::eq(&**queue.device(), &*self.device);
        match is_same {
            true => Ok(()),
            false => Err(self.refuse("a queue of another context or device cannot join a capture")),
        }
    }

    fn is_over(&self) -> bool {
        self.state.lock().recorded.is_none()
    }

    fn invalidate(&self) {
        self.state.lock().is_invalidated = true;
    }

    /// Invalidates the capture because a command could not be recorded. Returns the failure.
    fn fail(&self, result: ur_result_t, why: impl Into<Cow<'static, str>>) -> Failure {
        self.invalidate();
        Failure::new(result, why)
    }

    /// Invalidates the capture because graphs do not support an operation. Returns the failure.
    #[cold]
    pub(crate) fn refuse(&self, why: impl Into<Cow<'static, str>>) -> Failure {
        self.fail(ur_result_t::UR_RESULT_ERROR_GRAPH_CAPTURE_UNSUPPORTED, why)
    }

    /// Notes that a command in this capture uses a memory object.
    pub(crate) fn note(&self, used: MemoryUse) {
        if let Some(recorded) = &mut self.state.lock().recorded {
            recorded.recording.note(used);
        }
    }

    /// Makes each run of the graph wait for signals of events from outside the graph.
    ///
    /// # Errors
    /// Returns `GRAPH_CAPTURE_INVALIDATED` if the capture was invalidated earlier or has ended.
    pub(crate) fn wait_for(&self, waits: impl IntoIterator<Item = (Event, u64)>) -> Result<()> {
        let waits: Waits = waits.into_iter().collect();
        self.state.lock().recorded()?.recording.wait_for(waits);
        Ok(())
    }

    /// Records commands from a queue, in order, and returns the node of the last command. The first
    /// command follows `before`.
    ///
    /// # Errors
    /// Returns `GRAPH_CAPTURE_INVALIDATED` if the capture was invalidated earlier or has ended.
    ///
    /// The other errors invalidate the capture, because it may contain only some of the commands:
    /// - `GRAPH_CAPTURE_UNSUPPORTED` if graphs do not support a command, or if the graph would both
    ///   signal a shared event and wait for its next signal.
    /// - `GRAPH_CAPTURE_MERGE_ATTEMPT` if another capture began in the queue in the meantime.
    /// - `INVALID_ARGUMENT` if `commands` is empty.
    pub(crate) fn record(
        self: &Arc<Self>,
        queue: &Queue,
        kind: ur_command_t,
        commands: Vec<Command>,
        before: Predecessors<'_>,
        order: Order,
    ) -> Result<CapturedNode> {
        let nodes = before.nodes.iter();
        let mut after: Vec<u32> = nodes.map(|node| node.index).collect();
        let mut next = before.next;
        let state = &mut *self.state.lock();
        state.recorded()?;
        let recorded = state.member(queue.capture_slot(), self).and_then(|member| {
            let mut last = None;
            for command in commands {
                let after = mem::take(&mut after).into_iter().chain(last).collect();
                let command = (kind, command, mem::take(&mut next));
                last = Some(state.add(member, command, after, order, queue.is_in_order())?);
            }
            last.ok_or_else(|| Failure::argument("there are no commands to record"))
        });
        let index = recorded.inspect_err(|_| state.is_invalidated = true)?;
        Ok(CapturedNode {
            capture: Arc::downgrade(self),
            index,
        })
    }
}

impl State {
    /// Returns the recorded graph.
    ///
    /// # Errors
    /// Returns `GRAPH_CAPTURE_INVALIDATED` if the capture was invalidated or has ended.
    fn recorded(&mut self) -> Result<&mut Recorded> {
        let recorded = self.recorded.as_mut().filter(|_| !self.is_invalidated);
        recorded.ok_or_else(invalidated)
    }

    /// Returns the index of a queue in the capture. Adds the queue if it is not part of the capture
    /// yet.
    ///
    /// # Errors
    /// Returns `GRAPH_CAPTURE_MERGE_ATTEMPT` if another capture began in the queue in the meantime.
    fn member(&mut self, slot: &Arc<CaptureSlot>, capture: &Arc<Capture>) -> Result<usize> {
        let is_it = |member: &Member| std::ptr::eq(member.slot.as_ptr(), &**slot);
        if let Some(index) = self.members.iter().position(is_it) {
            return Ok(index);
        }
        if !slot.join(capture) {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_GRAPH_CAPTURE_MERGE_ATTEMPT,
                "this queue is part of another capture",
            ));
        }
        self.members.push(Member::new(Arc::downgrade(slot)));
        Ok(self.members.len() - 1)
    }

    /// Records one command from a queue, and returns the index of its node. In each run, the
    /// command also waits for the next signal of the cursors.
    fn add(
        &mut self,
        member: usize,
        (kind, command, next): (ur_command_t, Command, Vec<&SignalCursor>),
        mut after: Vec<u32>,
        order: Order,
        is_in_order: bool,
    ) -> Result<u32> {
        let queue = &mut self.members[member];
        let recorded = self.recorded.as_mut().ok_or_else(invalidated)?;
        let Recorded { recording, nodes } = recorded;
        after.extend(queue.barrier);
        if order.after_earlier {
            after.extend(&queue.since);
        }
        after.sort_unstable();
        after.dedup();
        let index = nodes.len() as u32;
        let before: Vec<_> = after
            .iter()
            .map(|index| nodes[*index as usize].node)
            .collect();
        // The index fits into 32 bits, because a graph in `crosshandle` has a maximum number of
        // nodes.
        let node = recording.add(command, &before, &next).map_err(|error| {
            let unsupported = matches!(error, Error::Unsupported(_));
            let failure = Failure::from(error);
            match unsupported {
                true => failure.with_result(ur_result_t::UR_RESULT_ERROR_GRAPH_CAPTURE_UNSUPPORTED),
                false => failure,
            }
        })?;
        nodes.push(Entry {
            node,
            kind,
            queue: member as u32,
            after,
        });
        if is_in_order || order.after_earlier {
            // This command follows the nodes in `since`. Nodes that follow this command follow them
            // implicitly.
            queue.since.clear();
        }
        if is_in_order || order.before_later {
            queue.barrier = Some(index);
        } else {
            queue.since.push(index);
        }
        Ok(index)
    }
}

impl Recorded {
    /// Returns the graph if all other queues were joined to the origin.
    ///
    /// # Errors
    /// Returns `GRAPH_UNJOINED_FORKS` if a queue was not joined.
    fn joined(self) -> Result<Self> {
        match self.is_joined() {
            true => Ok(self),
            false => Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_GRAPH_UNJOINED_FORKS,
                "another queue recorded commands that no command of the capture's origin queue follows",
            )),
        }
    }

    /// Returns whether each node from another queue is directly or indirectly followed by a node
    /// from the origin.
    fn is_joined(&self) -> bool {
        let mut is_joined: Vec<bool> = self.nodes.iter().map(|node| node.queue == 0).collect();
        // A node follows only nodes with smaller indexes.
        for (index, node) in self.nodes.iter().enumerate().rev() {
            if is_joined[index] {
                node.after
                    .iter()
                    .for_each(|before| is_joined[*before as usize] = true);
            }
        }
        is_joined.into_iter().all(|is_joined| is_joined)
    }
}

fn not_capturing() -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_COMMAND_LIST_NOT_CAPTURING,
        "this queue is not being captured",
    )
}

fn invalidated() -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_GRAPH_CAPTURE_INVALIDATED,
        "a command could not be recorded, so this capture cannot produce a graph: end the capture",
    )
}

/// Returns the failure for using an event of a captured command outside its capture.
#[cold]
pub(crate) fn internal_event() -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_GRAPH_INTERNAL_EVENT,
        "this event belongs to a command that was recorded in a graph, and is only valid there",
    )
}
