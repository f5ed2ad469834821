//! Graphs: commands that are recorded once, and run as one command any number of times.

mod executable;

pub use executable::{ExecutableGraph, Replaced};

use crate::api::command::Command;
use crate::api::core::ContextCore;
use crate::error::{Error, Result};
use crate::hal::{GraphNode, GraphRun, RecordedWork, Submission, Work};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Recorded commands, which run in an order that their dependencies allow.
///
/// Record commands with [`add`](Self::add), make what runs with [`instantiate`](Self::instantiate), and
/// submit [`ExecutableGraph::command`]: one submission, however many commands there are. That command waits
/// for events and signals one as any other does, across processes too; the nodes inside do neither.
///
/// A graph keeps the memory, images, kernels and programs of its commands, and so do the executable graphs that are
/// made of it.
///
/// ```
/// # use crosshandle::{Command, Context, Device};
/// # fn main() -> crosshandle::Result<()> {
/// let context = Context::new(&Device::find("host")?)?;
/// let memory = context.allocate(1 << 10)?;
/// let mut graph = context.create_graph();
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
    /// The latest node that all later ones come after.
    barrier: Option<u32>,
}

/// A command of a graph, as that graph and its executable graphs know it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    graph: u64,
    index: u32,
}

/// What an executable graph's node is made of.
#[derive(Clone)]
struct Recorded {
    work: Arc<RecordedWork>,
    after: Arc<[u32]>,
    is_on_host: bool,
    /// A node that stands for a whole graph, whose nodes it comes after: no other command takes its place.
    ends_graph: bool,
}

impl Recorded {
    /// Takes a command that comes after some nodes of a graph of a context.
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

/// Refuses a command with events.
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
    pub(crate) fn new(core: &Arc<ContextCore>) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Self {
            core: Arc::clone(core),
            id: IDS.fetch_add(1, Ordering::Relaxed),
            nodes: Vec::new(),
            barrier: None,
        }
    }

    /// Records a copy, a fill, a launch, a marker or a barrier, which begins when all of `after` are done.
    /// Nodes that nothing orders may run at the same time. [`Command::after_earlier`] and
    /// [`Command::before_later`] order a command among all nodes of this graph, and so does a
    /// [barrier](Command::barrier), which is both.
    ///
    /// A command comes after nodes that are there already, so a graph has no cycles.
    ///
    /// [The command that runs another graph](ExecutableGraph::command) records that graph's nodes, as they
    /// are now: later updates of the other graph change nothing here. The node that is returned is done when
    /// all of them are, and takes no [update](ExecutableGraph::update).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a node of another graph, a graph or an image of another context, or more
    /// than 4,294,967,295 nodes; [`Error::Unsupported`] for a command that waits for or signals an event, or
    /// calls a function.
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

    /// Records the nodes of another graph after some of this one, and one that comes after all of them.
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

    /// Returns the nodes after which nothing comes yet.
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

    /// Makes an executable graph of the commands that were recorded until now. Any number can be made;
    /// an update of one leaves the others as they are.
    ///
    /// In some drivers this call waits until the device has done all submitted work, as loading a
    /// program does.
    ///
    /// # Errors
    /// [`Error::Driver`] and limits of the driver; [`Error::InvalidArgument`] for a kernel of another
    /// device.
    pub fn instantiate(&self) -> Result<ExecutableGraph> {
        ExecutableGraph::new(&self.core, self.id, &self.nodes)
    }
}

/// Refuses more nodes than have indices.
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
    /// Makes the node of an executable graph of a context.
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
