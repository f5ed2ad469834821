//! Executable graphs, the form in which queues run graphs.

use super::{Node, Recorded, unknown_node};
use crate::api::command::Command;
use crate::api::core::ContextCore;
use crosshandle_hal::{BackendGraph, GraphNode, GraphNodes, GraphRun, Submission, Work};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use std::fmt;
use std::mem;
use std::sync::Arc;

/// A graph that queues can run. Any thread may use it, and it outlives the
/// [`Graph`](crate::graph::Graph) that it was made from.
///
/// # Order of runs
/// A run is a command, so its queue and its events order it. If the driver runs the graph itself
/// ([`native_graphs`](crate::device::Capabilities::native_graphs)), it also starts no run before
/// the previous one has ended, even in another queue. Therefore no run may wait for a signal that
/// comes only after a later run.
///
/// Do not rely on that order if runs must not overlap. An [update](Self::update) may create a new
/// graph in the driver. Then only events order runs of the new graph in one queue with runs of the
/// old graph in another.
///
/// # Updates
/// An [`update`](Self::update) changes only runs that are submitted after it. Earlier runs execute
/// the commands that the graph had when they were submitted. A graph in the driver keeps the
/// commands of its latest run until a later run replaces them.
pub struct ExecutableGraph {
    core: Arc<ContextCore>,
    graph: u64,
    /// Locked during an update, so that no update is lost. The driver may wait for a device while
    /// this lock is held.
    updating: Mutex<()>,
    /// Never locked while a driver is called.
    state: Mutex<State>,
}

struct State {
    nodes: GraphNodes,
    driver_graph: Option<Arc<dyn BackendGraph>>,
    copied: u64,
    is_on_host: bool,
}

impl State {
    fn new(nodes: GraphNodes, driver_graph: Option<Arc<dyn BackendGraph>>) -> Self {
        let copied = nodes.iter().map(|node| copied_by(node.work.work())).sum();
        let is_on_host = nodes.iter().all(|node| node.is_on_host);
        Self {
            nodes,
            driver_graph,
            copied,
            is_on_host,
        }
    }
}

/// Returns the number of bytes that a command copies.
fn copied_by(work: &Work) -> u64 {
    match work {
        Work::Copy { len, .. } => *len as u64,
        Work::CopyRect(copy) => copy.region.bytes() as u64,
        Work::CopyImage(copy) => copy.bytes as u64,
        _ => 0,
    }
}

/// Creates the driver's graph, if the driver has graphs.
fn instantiate(core: &ContextCore, nodes: &GraphNodes) -> Result<Option<Arc<dyn BackendGraph>>> {
    let graphs = core.backend().graphs();
    graphs.map(|graphs| graphs.instantiate(nodes)).transpose()
}

impl ExecutableGraph {
    pub(super) fn new(core: &Arc<ContextCore>, graph: u64, recorded: &[Recorded]) -> Result<Self> {
        let nodes = recorded.iter().map(|node| node.prepare(core));
        let nodes = Arc::new(nodes.collect::<Result<Vec<_>>>()?);
        let driver_graph = instantiate(core, &nodes)?;
        Ok(Self {
            core: Arc::clone(core),
            graph,
            updating: Mutex::new(()),
            state: Mutex::new(State::new(nodes, driver_graph)),
        })
    }

    /// Creates a command that runs the graph once, in its current state, in a queue of its context.
    ///
    /// The command can wait for events and signal one. The signal comes when all nodes are
    /// complete. If a node fails, the command fails, and it is unknown which other nodes ran.
    pub fn command(&self) -> Command {
        let state = self.state.lock();
        let mut submission = Submission::new(Work::Graph(Box::new(GraphRun {
            nodes: Arc::clone(&state.nodes),
            driver_graph: state.driver_graph.clone(),
            copied: state.copied,
            counter: Arc::clone(self.core.exporter().copied()),
            replaced: Mutex::default(),
        })));
        submission.is_on_host = state.is_on_host;
        Command { submission }
    }

    /// Replaces the command of a node for all runs submitted from now on.
    ///
    /// The new command may be a launch with other arguments or another shape, a fill with another
    /// pattern, or any other command that can be recorded. The node keeps its place in the order.
    ///
    /// A graph in the driver applies another launch of the same kernel, and other fills of the same
    /// kind of memory, at its next run. For other changes a new graph is created, as in
    /// [`instantiate`](crate::graph::Graph::instantiate).
    ///
    /// # Errors
    /// The errors of [`Graph::add`](crate::graph::Graph::add) and
    /// [`Graph::instantiate`](crate::graph::Graph::instantiate), and [`Error::Unsupported`] if the
    /// new command or the old node runs a graph. After an error the graph is unchanged.
    pub fn update(&self, node: Node, command: Command) -> Result<()> {
        drop(self.update_all([(node, command)])?);
        Ok(())
    }

    /// Updates several nodes at once. After an error, none is updated.
    ///
    /// Returns the replaced nodes, so that a caller that holds locks can drop them later. Dropping
    /// memory or kernels may take locks.
    ///
    /// # Errors
    /// The errors of [`update`](Self::update).
    pub fn update_all(
        &self,
        updates: impl IntoIterator<Item = (Node, Command)>,
    ) -> Result<Replaced> {
        // Nothing is locked here. The iterator is the program's code. Dropping what a command or a
        // node keeps, here or after an error, may also run the program's code. No update changes
        // the number of nodes or their order.
        let recorded = Arc::clone(&self.state.lock().nodes);
        let mut changed = Vec::new();
        for (node, command) in updates {
            if node.graph != self.graph {
                return Err(unknown_node());
            }
            let index = node.index as usize;
            // A node that was recorded after this graph was instantiated is missing here.
            let old = recorded.get(index);
            let old = old.ok_or_else(|| {
                Error::invalid("this node was recorded after this graph was instantiated")
            })?;
            if old.ends_graph {
                return Err(Error::Unsupported(
                    "this node runs a whole graph, which no other command can replace".into(),
                ));
            }
            let new = Recorded::new(&self.core, command.submission, Arc::clone(&old.after))?;
            changed.push((index, new.prepare(&self.core)?));
        }
        Ok(Replaced {
            _state: self.replace(&changed)?,
            _nodes: recorded,
        })
    }

    /// Replaces nodes, one update at a time. Returns the previous state, which the caller must drop
    /// without holding a lock.
    fn replace(&self, changed: &[(usize, Arc<GraphNode>)]) -> Result<State> {
        let _updating = self.updating.lock();
        let (present, driver_graph) = {
            let state = self.state.lock();
            (Arc::clone(&state.nodes), state.driver_graph.clone())
        };
        let fits = driver_graph.as_ref().is_none_or(|graph| {
            let mut changed = changed.iter();
            changed.all(|(index, node)| graph.accepts(*index, node))
        });
        let mut nodes = Vec::clone(&present);
        for (index, node) in changed {
            nodes[*index] = Arc::clone(node);
        }
        let nodes = Arc::new(nodes);
        let driver_graph = match fits {
            true => driver_graph,
            false => instantiate(&self.core, &nodes)?,
        };
        let new = State::new(nodes, driver_graph);
        Ok(mem::replace(&mut *self.state.lock(), new))
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.state.lock().nodes.len()
    }

    /// Returns whether the graph has no nodes. A run of an empty graph only waits and signals.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether a run is one launch of a graph in the driver.
    pub fn is_native(&self) -> bool {
        self.state.lock().driver_graph.is_some()
    }
}

/// The nodes that an [update](ExecutableGraph::update_all) replaced. Dropping this value frees the
/// memory and kernels that no other object keeps.
pub struct Replaced {
    _state: State,
    /// Kept in addition to `_state`, which may belong to the update of another thread.
    _nodes: GraphNodes,
}

impl fmt::Debug for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replaced").finish_non_exhaustive()
    }
}

impl fmt::Debug for ExecutableGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutableGraph")
            .field("nodes", &self.len())
            .field("is_native", &self.is_native())
            .finish_non_exhaustive()
    }
}
