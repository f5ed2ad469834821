//! Graphs: commands that are recorded once and run as one command any number of times.

mod executable;

pub use executable::{ExecutableGraph, Replaced};

use crate::api::command::Command;
use crate::api::context::Context;
use crate::api::core::ContextCore;
use crosshandle_hal::{GraphNode, GraphRun, RecordedWork, Submission, Work};
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
/// event like any other command, also across processes. The recorded commands do neither.
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
pub struct Graph {
    core: Arc<ContextCore>,
    id: u64,
    nodes: Vec<Recorded>,
    /// The latest node that must run before all nodes recorded after it.
    barrier: Option<u32>,
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
}

impl Recorded {
    /// Records a command that runs after the nodes `after` of a graph of this context.
    fn new(core: &ContextCore, submission: Submission, after: Arc<[u32]>) -> Result<Self> {
        check_events(&submission)?;
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
        })
    }
}

/// Checks that the command waits for no event and signals none.
fn check_events(submission: &Submission) -> Result<()> {
    if submission.waits.is_empty() && submission.signal.is_none() {
        return Ok(());
    }
    Err(Error::Unsupported(
        "a recorded command waits for no event and signals none; let the command that runs the graph do \
         that (`ExecutableGraph::command`)"
            .into(),
    ))
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
        }
    }

    /// Records a copy, a fill, a launch, a marker or a barrier. The command starts when all of
    /// `after` are complete.
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
    /// - [`Error::Unsupported`] for a command that waits for an event, signals an event, or calls a
    ///   function.
    pub fn add(&mut self, command: Command, after: &[Node]) -> Result<Node> {
        let mut before: SmallVec<[u32; 8]> = match command.submission.after_earlier {
            true => self.ends(),
            false => self.barrier.into_iter().collect(),
        };
        for node in after {
            before.push(self.index_of(*node)?);
        }
        before.sort_unstable();
        before.dedup();
        let is_barrier = command.submission.before_later;
        match &command.submission.work {
            Work::Graph(run) => {
                check_events(&command.submission)?;
                self.add_graph(run, &before)?;
            }
            _ => {
                index_after(self.nodes.len(), 1)?;
                self.nodes.push(Recorded::new(
                    &self.core,
                    command.submission,
                    before.as_slice().into(),
                )?);
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
    /// after all of them.
    fn add_graph(&mut self, run: &GraphRun, before: &[u32]) -> Result<()> {
        if !Arc::ptr_eq(&run.counter, self.core.exporter().copied()) {
            return Err(Error::invalid("this graph is one of another context"));
        }
        let first = self.nodes.len();
        index_after(first, run.nodes.len() + 1)?;
        let mut is_end = vec![true; run.nodes.len()];
        for node in run.nodes.iter() {
            let after = match &*node.after {
                [] => before.into(),
                after => {
                    after
                        .iter()
                        .for_each(|index| is_end[*index as usize] = false);
                    after.iter().map(|index| index + first as u32).collect()
                }
            };
            self.nodes.push(Recorded {
                work: Arc::clone(&node.work),
                after,
                is_on_host: node.is_on_host,
                ends_graph: node.ends_graph,
            });
        }
        let ends = (first as u32..).zip(is_end).filter(|(_, is_end)| *is_end);
        let after: Arc<[u32]> = match run.nodes.len() {
            0 => before.into(),
            _ => ends.map(|(index, _)| index).collect(),
        };
        let mut end = Recorded::new(&self.core, Submission::new(Work::Marker), after)?;
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

impl Recorded {
    /// Creates the node that executable graphs of a context use.
    fn prepare(&self, core: &ContextCore) -> Result<Arc<GraphNode>> {
        let prepared = match core.backend().graphs() {
            Some(graphs) => graphs.prepare(self.work.work())?,
            None => None,
        };
        Ok(Arc::new(GraphNode {
            work: Arc::clone(&self.work),
            after: Arc::clone(&self.after),
            is_on_host: self.is_on_host,
            ends_graph: self.ends_graph,
            prepared,
        }))
    }
}
