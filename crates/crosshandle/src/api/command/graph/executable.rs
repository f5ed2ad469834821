//! Executable graphs, the form in which queues run graphs.

use super::divided::{DividedRun, Division};
use super::{Node, Recorded, unknown_node};
use crate::api::command::Command;
use crate::api::core::ContextCore;
use crosshandle_hal::{BackendGraph, GraphNode, GraphNodes, GraphRun, Work};
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
    division: Arc<Division>,
    /// Locked during an update, so that no update is lost. The driver may wait for a device while
    /// this lock is held.
    updating: Mutex<()>,
    /// Never locked while a driver is called.
    state: Mutex<State>,
}

/// The present nodes of each part.
struct State {
    parts: Arc<[PartNodes]>,
}

/// The nodes of one part, and the driver's graph of them.
#[derive(Clone)]
pub(super) struct PartNodes {
    pub(super) nodes: GraphNodes,
    driver_graph: Option<Arc<dyn BackendGraph>>,
    copied: u64,
    pub(super) is_on_host: bool,
}

impl PartNodes {
    /// Creates a part. `driver_graph` is the driver's graph of the nodes, if there is one already.
    fn new(
        core: &ContextCore,
        nodes: GraphNodes,
        driver_graph: Option<Arc<dyn BackendGraph>>,
        is_whole: bool,
    ) -> Result<Self> {
        // A part that only waits and signals needs no graph of the driver.
        let needs_graph = is_whole || !is_marker(&nodes);
        let driver_graph = match driver_graph {
            None if needs_graph => instantiate(core, &nodes)?,
            present => present,
        };
        Ok(Self {
            copied: nodes.iter().map(|node| copied_by(node.work.work())).sum(),
            is_on_host: nodes.iter().all(|node| node.is_on_host),
            nodes,
            driver_graph,
        })
    }

    /// Returns the work of one run.
    pub(super) fn work(&self, core: &ContextCore) -> Work {
        match is_marker(&self.nodes) {
            true => Work::Marker,
            false => self.run(core),
        }
    }

    fn run(&self, core: &ContextCore) -> Work {
        Work::Graph(Box::new(GraphRun {
            nodes: Arc::clone(&self.nodes),
            driver_graph: self.driver_graph.clone(),
            copied: self.copied,
            counter: Arc::clone(core.exporter().copied()),
            replaced: Mutex::default(),
        }))
    }
}

/// Returns whether the nodes do no work.
fn is_marker(nodes: &[Arc<GraphNode>]) -> bool {
    nodes
        .iter()
        .all(|node| matches!(node.work.work(), Work::Marker))
}

/// Returns the nodes of a run, in the form in which another graph of the same context records them.
pub(super) fn recorded(core: &ContextCore, run: &GraphRun) -> Result<Vec<Recorded>> {
    if !Arc::ptr_eq(&run.counter, core.exporter().copied()) {
        return Err(Error::invalid("this graph is one of another context"));
    }
    let nodes = run.nodes.iter().map(|node| Recorded {
        work: Arc::clone(&node.work),
        after: Arc::clone(&node.after),
        is_on_host: node.is_on_host,
        ends_graph: node.ends_graph,
        function: None,
        events: None,
    });
    Ok(nodes.collect())
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
        let (division, nodes) = Division::new(core, recorded)?;
        let is_whole = division.is_whole();
        let parts = nodes
            .into_iter()
            .map(|nodes| PartNodes::new(core, nodes, None, is_whole));
        let parts = parts.collect::<Result<_>>()?;
        Ok(Self {
            core: Arc::clone(core),
            graph,
            division: Arc::new(division),
            updating: Mutex::new(()),
            state: Mutex::new(State { parts }),
        })
    }

    /// Creates a command that runs the graph once, in its current state, in a queue of its context.
    ///
    /// The command can wait for events and signal one. The signal comes when all nodes are
    /// complete. If a node fails, the command fails, and it is unknown which other nodes ran.
    pub fn command(&self) -> Command {
        let parts = self.parts();
        if let ([whole], true) = (&*parts, self.division.is_whole()) {
            return Command::with_memory(whole.run(&self.core), whole.is_on_host);
        }
        let mut command = Command::marker();
        command.divided = Some(Box::new(DividedRun {
            core: Arc::clone(&self.core),
            division: Arc::clone(&self.division),
            parts,
        }));
        command
    }

    fn parts(&self) -> Arc<[PartNodes]> {
        Arc::clone(&self.state.lock().parts)
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
        let parts = self.parts();
        let mut changed = Vec::new();
        for (node, command) in updates {
            if node.graph != self.graph {
                return Err(unknown_node());
            }
            // A node that was recorded after this graph was instantiated is missing here.
            let place = self.division.place(node.index).ok_or_else(|| {
                Error::invalid("this node was recorded after this graph was instantiated")
            })?;
            let old = &parts[place.part].nodes[place.index];
            if old.ends_graph || command.divided.is_some() {
                return Err(Error::Unsupported(
                    "a node that runs a whole graph cannot be replaced, and cannot replace others"
                        .into(),
                ));
            }
            let submission = command.submission;
            if submission.signal.is_some() || !submission.waits.is_empty() {
                return Err(Error::Unsupported(
                    "an update cannot change the events of a node; the new command has none".into(),
                ));
            }
            let new = Recorded::new(&self.core, submission, None, Arc::clone(&old.after))?;
            if new.function.is_some() || self.division.calls(place) {
                return Err(Error::Unsupported(
                    "an update cannot replace a function of the program, or become one".into(),
                ));
            }
            let new = new.prepare(&self.core, Arc::clone(&old.after))?;
            changed.push((place.part, place.index, new));
        }
        Ok(Replaced {
            _state: self.replace(&changed)?,
            _parts: parts,
        })
    }

    /// Replaces nodes, one update at a time. Returns the previous state, which the caller must drop
    /// without holding a lock.
    fn replace(&self, changed: &[(usize, usize, Arc<GraphNode>)]) -> Result<State> {
        let _updating = self.updating.lock();
        let mut parts = self.parts().to_vec();
        let is_whole = self.division.is_whole();
        for (index, part) in parts.iter_mut().enumerate() {
            let mut nodes = Vec::clone(&part.nodes);
            let mut fits = true;
            let mut is_changed = false;
            for (_, place, node) in changed.iter().filter(|(of, _, _)| *of == index) {
                is_changed = true;
                let graph = part.driver_graph.as_ref();
                fits &= graph.is_none_or(|graph| graph.accepts(*place, node));
                nodes[*place] = Arc::clone(node);
            }
            if is_changed {
                let driver_graph = part.driver_graph.take().filter(|_| fits);
                *part = PartNodes::new(&self.core, Arc::new(nodes), driver_graph, is_whole)?;
            }
        }
        let parts = parts.into();
        Ok(mem::replace(&mut *self.state.lock(), State { parts }))
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.division.len()
    }

    /// Returns whether a run is submitted in several parts, because nodes have events or call
    /// functions. The timestamps of the event that such a run signals are those of the last part.
    pub fn runs_in_parts(&self) -> bool {
        !self.division.is_whole()
    }

    /// Returns whether the graph has no nodes. A run of an empty graph only waits and signals.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the driver runs the nodes as a graph. If nodes have events or call
    /// functions, each part of the run that does other work is one launch of a graph in the driver.
    pub fn is_native(&self) -> bool {
        self.parts().iter().any(|part| part.driver_graph.is_some())
    }
}

/// The nodes that an [update](ExecutableGraph::update_all) replaced. Dropping this value frees the
/// memory and kernels that no other object keeps.
pub struct Replaced {
    _state: State,
    /// Kept in addition to `_state`, which may belong to the update of another thread.
    _parts: Arc<[PartNodes]>,
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
