//! Graphs: commands that are recorded once and run as one command any number of times.

mod cursor;
mod divided;
mod executable;

pub use cursor::SignalCursor;
pub(crate) use divided::DividedRun;
pub use executable::{ExecutableGraph, Replaced};

use crate::api::command::Command;
use crate::api::context::Context;
use crate::api::core::ContextCore;
use crosshandle_hal::{HostFunction, RecordedWork, RepeatableFunction, Submission, Work};
use crosshandle_ipc::EventCore;
use crosshandle_types::error::{Error, Result};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Recorded commands and the order in which they run.
///
/// Record commands with [`add`](Self::add), create an executable graph with
/// [`instantiate`](Self::instantiate), and submit its [`command`](ExecutableGraph::command). One
/// submission runs all recorded commands. The submitted command waits for events and signals an
/// event like any other command, also across processes. Recorded commands can do so too, at each
/// run (see [Events inside](#events-inside)).
///
/// A graph and the executable graphs made from it keep the memory, images, kernels and programs of
/// the recorded commands.
///
/// ```
/// # use crosshandle::{Command, Context, Device, graph::Graph};
/// # fn main() -> crosshandle::Result<()> {
/// let context = Context::new(&Device::find("host")?)?;
/// let memory = context.allocate(1 << 10)?;
/// let mut graph = Graph::new(&context);
/// let fill = graph.add(Command::fill(memory.range(..512)?, &[7])?, &[])?;
/// graph.add(Command::copy(memory.range(..512)?, memory.range(512..)?)?, &[fill])?;
/// let executable = graph.instantiate()?;
/// let (queue, done) = (context.create_queue()?, context.create_event()?);
/// queue.submit(executable.command().signal(&done))?;
/// done.wait()?;
/// # Ok(())
/// # }
/// ```
///
/// # Events inside
/// A recorded command can wait for events and signal one. The events may be shared with other
/// processes, and any process may also signal them without a graph. Each run does the following:
/// - A recorded [`signal`](Command::signal) takes the next number of the event.
/// - [`after`](Command::after) and [`after_submitted`](Command::after_submitted) wait for the
///   latest signal at the time when this part of the run is submitted. Signals of earlier nodes of
///   the same run are included.
/// - [`after_value`](Command::after_value) waits for the recorded number in the first run of the
///   executable graph, and for a later number in each further run. If the nodes wait for `n`
///   different numbers of an event, these numbers grow by `n` from run to run. Two graphs that
///   signal each other can therefore run in turns, and no host call is needed between the turns.
/// - A wait with a [`SignalCursor`] takes the next signal of the cursor, in any graph
///   ([`add_after_next`](Self::add_after_next)).
///
/// Such a graph runs in *parts*. A node that waits begins a part, and a node that signals or calls
/// a function ends one. Each part is submitted as one command, and starts when the previous part is
/// complete. Therefore record the nodes in an order in which they could run one by one. In
/// particular, record a signal before a wait for the peer's reply to it.
pub struct Graph {
    core: Arc<ContextCore>,
    id: u64,
    nodes: Vec<Recorded>,
    /// The latest node that must run before all nodes recorded after it.
    barrier: Option<u32>,
    uses: EventUses,
}

/// Identifies a command of a graph, in that graph and in its executable graphs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    graph: u64,
    index: u32,
}

/// A recorded command. Executable graphs make their nodes from it.
#[derive(Clone)]
struct Recorded {
    work: Arc<RecordedWork>,
    after: Arc<[u32]>,
    is_on_host: bool,
    /// Set for the node that ends a nested graph. It runs after all nodes of that graph, and no
    /// update can replace it.
    ends_graph: bool,
    /// The function that the node calls. The work of such a node is a marker.
    function: Option<RepeatableFunction>,
    /// The events of the node, if it has any.
    events: Option<Arc<NodeEvents>>,
}

/// The events that a node waits for, and the event that it signals.
#[derive(Clone, Default)]
struct NodeEvents {
    /// The numbers may be [`LATEST`](crate::api::command::LATEST) or
    /// [`SUBMITTED`](crate::api::command::SUBMITTED). Other numbers are those of the first run.
    waits: Vec<(Arc<EventCore>, u64)>,
    /// In each run, the node waits for the next signal of each cursor.
    next: Vec<SignalCursor>,
    signal: Option<Arc<EventCore>>,
}

/// The events whose next signal the nodes of a graph wait for, and the events that they signal.
#[derive(Clone, Default)]
struct EventUses {
    awaited: Vec<Arc<EventCore>>,
    signalled: Vec<Arc<EventCore>>,
}

impl EventUses {
    /// Adds the events of a node.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the graph would wait for the next signal of an event that
    /// it also signals. Its own signals count too, so the number of the peer's signal is unknown.
    fn add(&mut self, events: &NodeEvents) -> Result<()> {
        let awaited = events.next.iter().map(|cursor| cursor.event().core());
        let is_in = |events: &[Arc<EventCore>], event: &EventCore| {
            events.iter().any(|known| known.is_same_counter(event))
        };
        let signalled = events.signal.iter();
        let is_both = awaited.clone().any(|event| is_in(&self.signalled, event))
            || signalled.clone().any(|event| {
                is_in(&self.awaited, event)
                    || awaited.clone().any(|next| next.is_same_counter(event))
            });
        if is_both {
            return Err(Error::Unsupported(
                "a graph that signals an event cannot also wait for its next signal: use an event for \
                 each direction"
                    .into(),
            ));
        }
        for event in awaited {
            if !is_in(&self.awaited, event) {
                self.awaited.push(Arc::clone(event));
            }
        }
        for event in signalled {
            if !is_in(&self.signalled, event) {
                self.signalled.push(Arc::clone(event));
            }
        }
        Ok(())
    }
}

impl NodeEvents {
    /// Takes the events out of a submission, and adds the cursors `next`. A cursor that occurs
    /// twice is awaited once. Returns `None` if there are no events.
    fn take(submission: &mut Submission, next: &[&SignalCursor]) -> Option<Self> {
        let waits = std::mem::take(&mut submission.waits).into_vec();
        let mut events = Self {
            waits: waits
                .into_iter()
                .map(|wait| (wait.event, wait.number))
                .collect(),
            next: Vec::new(),
            signal: submission.signal.take(),
        };
        for cursor in next {
            if !events.next.iter().any(|known| known.is_same(cursor)) {
                events.next.push((*cursor).clone());
            }
        }
        events.non_empty()
    }

    /// Returns whether there are events to wait for.
    fn has_waits(&self) -> bool {
        !self.waits.is_empty() || !self.next.is_empty()
    }

    /// Returns `self`, or `None` if there are no events.
    fn non_empty(self) -> Option<Self> {
        (self.signal.is_some() || self.has_waits()).then_some(self)
    }
}

impl Recorded {
    /// Records a command that runs after the nodes `after` of a graph of this context.
    fn new(
        core: &ContextCore,
        mut submission: Submission,
        events: Option<Arc<NodeEvents>>,
        after: Arc<[u32]>,
    ) -> Result<Self> {
        let function = match &submission.work {
            Work::Call(HostFunction::Repeatable(function)) => Some(Arc::clone(function)),
            _ => None,
        };
        if function.is_some() {
            submission.work = Work::Marker;
        }
        if let Work::CopyImage(copy) = &submission.work
            && !Arc::ptr_eq(&copy.counter, core.exporter().copied())
        {
            return Err(Error::invalid(
                "this image was made in another context; a graph copies pixels of its own context's",
            ));
        }
        Ok(Self {
            work: Arc::new(RecordedWork::new(submission.work)?),
            after,
            is_on_host: submission.is_on_host,
            ends_graph: false,
            function,
            events,
        })
    }

    /// Creates a marker with events, which orders other nodes.
    fn marker(events: Option<Arc<NodeEvents>>, after: Arc<[u32]>) -> Result<Self> {
        Ok(Self {
            work: Arc::new(RecordedWork::new(Work::Marker)?),
            after,
            is_on_host: true,
            ends_graph: false,
            function: None,
            events,
        })
    }
}

impl Graph {
    /// Creates an empty graph, to which commands can be added.
    pub fn new(context: &Context) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Self {
            core: Arc::clone(context.core()),
            id: IDS.fetch_add(1, Ordering::Relaxed),
            nodes: Vec::new(),
            barrier: None,
            uses: EventUses::default(),
        }
    }

    /// Records a copy, a fill, a launch, a marker, a barrier or a
    /// [repeatable function](Command::call_repeatedly). The command starts when all of `after` are
    /// complete.
    ///
    /// Nodes without an order between them may run at the same time. [`Command::after_earlier`] and
    /// [`Command::before_later`] order a command among all nodes of this graph. A
    /// [barrier](Command::barrier) does both.
    ///
    /// A command can only run after nodes that are already recorded, so a graph has no cycles.
    ///
    /// Adding [the command that runs another graph](ExecutableGraph::command) records the nodes of
    /// that graph as they are now. Later updates of the other graph do not affect this one. The
    /// returned node is complete when all of these nodes are complete, and it cannot be
    /// [updated](ExecutableGraph::update).
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for a node of another graph, for a graph or an image of another
    ///   context, and for more than 4,294,967,295 nodes.
    /// - [`Error::Unsupported`] for a [`call`](Command::call) or a [`native`](Command::native)
    ///   command. Also for a signal of an event whose next signal another node awaits.
    #[inline]
    pub fn add(&mut self, command: Command, after: &[Node]) -> Result<Node> {
        self.add_after_next(command, after, &[])
    }

    /// Records a command as [`add`](Self::add) does. In each run, the command also waits for the
    /// next signal of each cursor in `next`. The number is taken when this part of the run is
    /// submitted, also if the queue then refuses the part.
    ///
    /// # Errors
    /// As [`add`](Self::add). Also [`Error::Unsupported`] if a node of this graph signals the event
    /// of a cursor. The signals of the graph itself would count too.
    pub fn add_after_next(
        &mut self,
        command: Command,
        after: &[Node],
        next: &[&SignalCursor],
    ) -> Result<Node> {
        let mut before: SmallVec<[u32; 8]> = match command.submission.after_earlier {
            true => self.ends(),
            false => self.barrier.into_iter().collect(),
        };
        for node in after {
            before.push(self.index_of(*node)?);
        }
        before.sort_unstable();
        before.dedup();
        let Command {
            mut submission,
            divided,
        } = command;
        let is_barrier = submission.before_later;
        let nested = match (&submission.work, &divided) {
            (_, Some(run)) => Some(run.recorded(&self.core)?),
            (Work::Graph(run), None) => Some(executable::recorded(&self.core, run)?),
            _ => None,
        };
        let events = NodeEvents::take(&mut submission, next);
        match nested {
            Some(nodes) => self.add_graph(nodes, events.unwrap_or_default(), &before)?,
            None => {
                index_after(self.nodes.len(), 1)?;
                let events = events.map(Arc::new);
                let after = before.as_slice().into();
                let node = Recorded::new(&self.core, submission, events.clone(), after)?;
                if let Some(events) = &events {
                    self.uses.add(events)?;
                }
                self.nodes.push(node);
            }
        }
        let index = self.nodes.len() as u32 - 1;
        if is_barrier {
            self.barrier = Some(index);
        }
        Ok(Node {
            graph: self.id,
            index,
        })
    }

    /// Records the nodes of another graph after the nodes `before`, and then one marker that runs
    /// after all of them. Markers wait for the events of the command that runs the other graph, and
    /// signal its event.
    fn add_graph(
        &mut self,
        nested: Vec<Recorded>,
        events: NodeEvents,
        before: &[u32],
    ) -> Result<()> {
        index_after(self.nodes.len(), nested.len() + 2)?;
        let inside = nested.iter().filter_map(|node| node.events.as_deref());
        let mut uses = self.uses.clone();
        for events in inside.chain([&events]) {
            uses.add(events)?;
        }
        self.uses = uses;
        let mut before: Arc<[u32]> = before.into();
        let signal = events.signal.clone();
        if events.has_waits() {
            let waits = NodeEvents {
                signal: None,
                ..events
            };
            let start = Recorded::marker(Some(Arc::new(waits)), before)?;
            before = [self.nodes.len() as u32].into();
            self.nodes.push(start);
        }
        let first = self.nodes.len() as u32;
        let mut is_end = vec![true; nested.len()];
        for mut node in nested {
            node.after = match &*node.after {
                [] => Arc::clone(&before),
                after => {
                    after
                        .iter()
                        .for_each(|index| is_end[*index as usize] = false);
                    after.iter().map(|index| index + first).collect()
                }
            };
            self.nodes.push(node);
        }
        let after: Arc<[u32]> = match is_end.is_empty() {
            true => before,
            false => {
                let ends = (first..).zip(is_end).filter(|(_, is_end)| *is_end);
                ends.map(|(index, _)| index).collect()
            }
        };
        let signal = signal.map(|event| {
            Arc::new(NodeEvents {
                signal: Some(event),
                ..NodeEvents::default()
            })
        });
        let mut end = Recorded::marker(signal, after)?;
        end.ends_graph = true;
        self.nodes.push(end);
        Ok(())
    }

    /// Returns the nodes that no other node runs after.
    fn ends(&self) -> SmallVec<[u32; 8]> {
        let mut is_end = vec![true; self.nodes.len()];
        for node in &self.nodes {
            node.after
                .iter()
                .for_each(|index| is_end[*index as usize] = false);
        }
        let ends = is_end.iter().enumerate().filter(|(_, is_end)| **is_end);
        ends.map(|(index, _)| index as u32).collect()
    }

    fn index_of(&self, node: Node) -> Result<u32> {
        match node.graph == self.id {
            true => Ok(node.index),
            false => Err(unknown_node()),
        }
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Creates an executable graph from the commands recorded so far. Each call creates a new
    /// executable graph, and updates of one executable graph do not affect the others.
    ///
    /// In some drivers this call waits until the device has completed all submitted work, as
    /// loading a program does.
    ///
    /// # Errors
    /// - [`Error::Driver`] if the driver fails or reaches a limit.
    /// - [`Error::InvalidArgument`] for a kernel of another device.
    pub fn instantiate(&self) -> Result<ExecutableGraph> {
        ExecutableGraph::new(&self.core, self.id, &self.nodes)
    }
}

/// Checks that `more` nodes can be added to `len` nodes. Indices have 32 bits.
fn index_after(len: usize, more: usize) -> Result<()> {
    match len.checked_add(more) {
        Some(len) if len <= u32::MAX as usize => Ok(()),
        _ => Err(Error::invalid("a graph has at most 4,294,967,295 nodes")),
    }
}

fn unknown_node() -> Error {
    Error::invalid("this node is one of another graph")
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("nodes", &self.nodes.len())
            .finish_non_exhaustive()
    }
}
