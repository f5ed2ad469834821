//! Graphs: commands that are recorded once, and run as one command any number of times.

mod executable;

pub use executable::ExecutableGraph;

use crate::api::command::Command;
use crate::api::core::ContextCore;
use crate::error::{Error, Result};
use crate::hal::{GraphNode, RecordedWork, Submission};
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
/// A graph keeps the memory, kernels and programs of its commands, and so do the executable graphs that are
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
}

impl Recorded {
    /// Takes a command that comes after some nodes.
    fn new(submission: Submission, after: Arc<[u32]>) -> Result<Self> {
        if !submission.waits.is_empty() || submission.signal.is_some() {
            return Err(Error::Unsupported(
                "a recorded command waits for no event and signals none; let the command that runs \
                 the graph do that (`ExecutableGraph::command`)"
                    .into(),
            ));
        }
        Ok(Self {
            work: Arc::new(RecordedWork::new(submission.work)?),
            after,
            is_on_host: submission.is_on_host,
        })
    }
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
    /// # Errors
    /// [`Error::InvalidArgument`] for a node of another graph, or more than 4,294,967,295 nodes;
    /// [`Error::Unsupported`] for a command that waits for or signals an event, calls a function, or
    /// runs a graph.
    pub fn add(&mut self, command: Command, after: &[Node]) -> Result<Node> {
        let index = u32::try_from(self.nodes.len());
        let index = index.map_err(|_| Error::invalid("a graph has at most 4,294,967,295 nodes"))?;
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
        self.nodes
            .push(Recorded::new(command.submission, before.as_slice().into())?);
        if is_barrier {
            self.barrier = Some(index);
        }
        Ok(Node {
            graph: self.id,
            index,
        })
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
            prepared,
        }))
    }
}
