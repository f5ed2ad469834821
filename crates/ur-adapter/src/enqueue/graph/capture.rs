//! Captures, which turn the submissions of queues into nodes of a graph instead of running them.
//!
//! A capture begins in one queue, its origin. Another queue of the same context and device joins
//! the capture with its first command that waits for an event of the capture (a fork). All queues
//! leave the capture when the origin ends it. Before that, commands of the origin must follow all
//! commands that the other queues have recorded (a join).
//!
//! A node follows the nodes whose events its command waits for, and the nodes that precede it in
//! the order of its queue. A node cannot wait for an event from outside the capture. Instead, each
//! run of the whole graph waits for the event's signal that was the latest when the command was
//! recorded.

use super::Graph;
use super::recording::{Recording, Waits};
use super::slot::CaptureSlot;
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::abi::object::Ref;
use crate::context::Context;
use crate::discovery::Device;
use crate::memory::buffer::BufferUse;
use crate::queue::Queue;
use crosshandle::{Command, Error, Event};
use std::borrow::Cow;
use std::mem;
use std::sync::{Arc, Weak};
use unified_runtime_sys::{ur_command_t, ur_result_t};

/// A capture, from its beginning to its end.
pub(crate) struct Capture {
    context: Ref<Context>,
    device: Ref<Device>,
    graph: Ref<Graph>,
    /// Whether the program created the graph. If not, the capture created it.
    is_programs: bool,
    origin: Weak<CaptureSlot>,
    state: Lock<State>,
}

/// A reference of an event to a node of a capture.
#[derive(Clone)]
pub(crate) struct CapturedNode {
    capture: Weak<Capture>,
    index: u32,
}

/// The order of a command relative to other commands of its queue.
#[derive(Clone, Copy, Default)]
pub(crate) struct Order {
    /// Whether the command follows all earlier submissions.
    pub(crate) after_earlier: bool,
    /// Whether all later submissions follow the command.
    pub(crate) before_later: bool,
}

struct State {
    /// The recorded graph, or `None` after the end of the capture.
    recorded: Option<Recorded>,
    /// Whether a command could not be recorded, so that the graph would be incomplete.
    is_invalidated: bool,
    members: Vec<Member>,
}

/// A captured graph, or one that is being captured.
pub(crate) struct Recorded {
    pub(super) recording: Recording,
    pub(super) nodes: Vec<Entry>,
}

/// The properties of a node, apart from its command.
pub(super) struct Entry {
    node: crosshandle::graph::Node,
    pub(super) kind: ur_command_t,
    /// The queue, as an index into the capture's queues. The origin is the first one.
    pub(super) queue: u32,
    pub(super) after: Vec<u32>,
}

/// A queue of the capture, and the nodes that its next command may follow.
struct Member {
    slot: Weak<CaptureSlot>,
    /// The latest node that all later nodes of the queue follow.
    barrier: Option<u32>,
    /// The nodes since the barrier that later nodes of the queue do not follow automatically. A
    /// barrier that waits only for certain events does not clear this list.
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

impl Capture {
    /// Begins a capture in a queue.
    ///
    /// # Errors
    /// Returns `INVALID_OPERATION` for a queue that is already capturing, and the errors of
    /// [`Graph::begin`].
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
                "this queue captures a graph already",
            ));
        }
        capture
            .graph
            .begin(&capture)
            .inspect_err(|_| slot.leave(&capture))
    }

    /// Ends the capture that a queue records into. Returns the graph, and whether the program
    /// created it.
    ///
    /// # Errors
    /// Returns `COMMAND_LIST_NOT_CAPTURING`, also if another thread ends the capture. Returns
    /// `INVALID_OPERATION` for a queue that is not the origin. Returns `GRAPH_CAPTURE_INVALIDATED`
    /// and `GRAPH_UNJOINED_FORKS`, after which the capture has ended.
    pub(super) fn end(queue: &Queue) -> Result<(Ref<Graph>, bool)> {
        let slot = queue.capture_slot();
        let capture = slot.capture().ok_or_else(not_capturing)?;
        if !capture.is_origin(slot) {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_OPERATION,
                "the capture began in another queue, which must end it",
            ));
        }
        let closed = capture.close().ok_or_else(not_capturing)?;
        let recorded = closed.inspect_err(|_| capture.graph.invalidate())?;
        capture.graph.fill(recorded);
        Ok((capture.graph.clone(), capture.is_programs))
    }

    /// Ends the capture and removes all its queues. Returns the recorded graph, or `None` if
    /// another thread ends the capture.
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

    /// Ends the capture after its origin queue was dropped.
    pub(super) fn abandon(self: &Arc<Self>) {
        if self.close().is_some() {
            self.graph.invalidate();
        }
    }

    /// Returns whether the capture began in this queue.
    pub(super) fn is_origin(&self, slot: &CaptureSlot) -> bool {
        std::ptr::eq(self.origin.as_ptr(), slot)
    }

    pub(super) fn graph(&self) -> &Ref<Graph> {
        &self.graph
    }

    /// Calls `look` with the nodes recorded so far, or with `None` if the capture has ended.
    pub(super) fn look<R>(&self, look: impl FnOnce(Option<&Recorded>) -> R) -> R {
        look(self.state.lock().recorded.as_ref())
    }

    /// Returns the capture that records a command, if any.
    ///
    /// It is the queue's capture, or the capture of the events that the command waits for. In the
    /// second case, the queue joins the capture by recording the command.
    ///
    /// # Errors
    /// Returns `GRAPH_INTERNAL_EVENT` for an event of an ended capture,
    /// `GRAPH_CAPTURE_MERGE_ATTEMPT`, `GRAPH_CAPTURE_UNSUPPORTED`, and `GRAPH_CAPTURE_INVALIDATED`.
    pub(crate) fn of_command<'a>(
        queue: &Queue,
        own: Option<Arc<Self>>,
        nodes: impl Iterator<Item = &'a CapturedNode>,
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

    /// Checks that a queue's commands can be recorded in this capture.
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

    /// Invalidates the capture because something could not be recorded. Returns the failure.
    fn fail(&self, result: ur_result_t, why: impl Into<Cow<'static, str>>) -> Failure {
        self.invalidate();
        Failure::new(result, why)
    }

    /// Invalidates the capture because graphs do not support an operation. Returns the failure.
    #[cold]
    pub(crate) fn refuse(&self, why: impl Into<Cow<'static, str>>) -> Failure {
        self.fail(ur_result_t::UR_RESULT_ERROR_GRAPH_CAPTURE_UNSUPPORTED, why)
    }

    /// Records in a buffer that a command of this capture uses it.
    pub(crate) fn note(&self, buffer: &BufferUse<'_>) {
        if let Some(recorded) = &mut self.state.lock().recorded {
            recorded.recording.note(buffer);
        }
    }

    /// Makes each run of the graph wait for signals of events outside the graph.
    ///
    /// # Errors
    /// Returns `GRAPH_CAPTURE_INVALIDATED` if the capture was invalidated earlier.
    pub(crate) fn wait_for(&self, waits: impl IntoIterator<Item = (Event, u64)>) -> Result<()> {
        let waits: Waits = waits.into_iter().collect();
        self.state.lock().recorded()?.recording.wait_for(waits);
        Ok(())
    }

    /// Records commands of a queue, in order. The first command follows the nodes in `after`.
    /// Returns the node of the last command.
    ///
    /// # Errors
    /// Returns `GRAPH_CAPTURE_INVALIDATED`. Returns `GRAPH_CAPTURE_UNSUPPORTED` for a command that
    /// graphs do not support, `GRAPH_CAPTURE_MERGE_ATTEMPT` if another capture began in the queue
    /// meanwhile, and `INVALID_ARGUMENT` for an empty list. These three invalidate the capture,
    /// because it is unknown which commands it contains.
    pub(crate) fn record(
        self: &Arc<Self>,
        queue: &Queue,
        kind: ur_command_t,
        commands: Vec<Command>,
        after: impl Iterator<Item = CapturedNode>,
        order: Order,
    ) -> Result<CapturedNode> {
        let mut after: Vec<u32> = after.map(|node| node.index).collect();
        let state = &mut *self.state.lock();
        state.recorded()?;
        let recorded = state.member(queue.capture_slot(), self).and_then(|member| {
            let mut last = None;
            for command in commands {
                let after = mem::take(&mut after).into_iter().chain(last).collect();
                last = Some(state.add(member, kind, command, after, order, queue.is_in_order())?);
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
    /// Returns `GRAPH_CAPTURE_INVALIDATED` if the capture was invalidated earlier.
    fn recorded(&mut self) -> Result<&mut Recorded> {
        let recorded = self.recorded.as_mut().filter(|_| !self.is_invalidated);
        recorded.ok_or_else(invalidated)
    }

    /// Returns the index of a queue of the capture. A queue that is not part of it yet joins it.
    ///
    /// # Errors
    /// Returns `GRAPH_CAPTURE_MERGE_ATTEMPT` if another capture began in the queue meanwhile.
    fn member(&mut self, slot: &Arc<CaptureSlot>, capture: &Arc<Capture>) -> Result<usize> {
        let is_it = |member: &Member| std::ptr::eq(member.slot.as_ptr(), &**slot);
        if let Some(index) = self.members.iter().position(is_it) {
            return Ok(index);
        }
        if !slot.join(capture) {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_GRAPH_CAPTURE_MERGE_ATTEMPT,
                "this queue records in another capture",
            ));
        }
        self.members.push(Member::new(Arc::downgrade(slot)));
        Ok(self.members.len() - 1)
    }

    /// Records a command of a queue.
    fn add(
        &mut self,
        member: usize,
        kind: ur_command_t,
        command: Command,
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
        // Indexes fit into 32 bits, because the library's graph limits the number of nodes.
        let node = recording.add(command, &before).map_err(|error| {
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
            // This command follows the nodes in the list, so nodes that follow this command follow
            // them too.
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
    /// Returns the graph, if all its other queues were joined to the origin.
    ///
    /// # Errors
    /// Returns `GRAPH_UNJOINED_FORKS` if a queue was not joined.
    fn joined(self) -> Result<Self> {
        match self.is_joined() {
            true => Ok(self),
            false => Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_GRAPH_UNJOINED_FORKS,
                "another queue recorded commands that none of the queue in which the capture began comes \
                 after",
            )),
        }
    }

    /// Returns whether each node of another queue is followed by a node of the origin.
    fn is_joined(&self) -> bool {
        let mut is_joined: Vec<bool> = self.nodes.iter().map(|node| node.queue == 0).collect();
        // A node only follows nodes with smaller indexes.
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
        "this queue captures no graph",
    )
}

fn invalidated() -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_GRAPH_CAPTURE_INVALIDATED,
        "something could not be recorded, so that this capture makes no graph; end it",
    )
}

/// Returns the failure for an event of a capture that is used elsewhere.
#[cold]
pub(crate) fn internal_event() -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_GRAPH_INTERNAL_EVENT,
        "this event belongs to a command that was recorded in a graph, and is only valid there",
    )
}
