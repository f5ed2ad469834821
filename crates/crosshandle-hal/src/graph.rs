//! Graphs: work that is recorded once, and then run as one command any number of times.
//!
//! A backend whose driver has graphs creates a driver graph from the nodes ([`BackendGraphs`]) and
//! launches it. The other backends replay the nodes: for [`Work::Graph`], they do the work of all
//! nodes one after the other. They follow the order of recording, which satisfies all dependencies.
//!
//! Nodes that wait for events, signal events or call functions of the program never reach a backend
//! as nodes. The object layer divides the graph at these nodes, and submits the parts as commands.

use super::Work;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The work of a node: a copy, a fill, a launch or a marker. It can be done any number of times.
pub struct RecordedWork(Work);

// SAFETY: `new` refuses `Call` and `Native`, the only variants with a part that threads must not
// share: a function. All other parts are values, `Arc`s of objects that are `Sync`, and boxes of
// these. Nothing changes the work after it is created.
unsafe impl Sync for RecordedWork {}

impl RecordedWork {
    /// Takes the work of a command, if it can be repeated.
    pub fn new(work: Work) -> Result<Self> {
        match work {
            Work::Marker
            | Work::Copy { .. }
            | Work::CopyRect(_)
            | Work::CopyImage(_)
            | Work::Fill { .. }
            | Work::Fill2d(_)
            | Work::Launch(_)
            | Work::Recorded(_) => Ok(Self(work)),
            Work::Call(_) | Work::Native(_) => Err(Error::Unsupported(
                "a function that runs once cannot be recorded in a graph; use one that can run again \
                 (`Command::call_repeatedly`), or submit it between two runs"
                    .into(),
            )),
            // A graph records the nodes of another graph, so this work can only come from an
            // update.
            Work::Graph(_) => Err(Error::Unsupported(
                "a graph cannot take the place of a node".into(),
            )),
        }
    }

    pub fn work(&self) -> &Work {
        &self.0
    }
}

/// A node of an executable graph. A node never changes. An update replaces it by a new node, and
/// runs that were submitted before the update keep the old one.
pub struct GraphNode {
    pub work: Arc<RecordedWork>,
    /// The nodes that this node depends on, as indices that are less than its own.
    pub after: Arc<[u32]>,
    /// Whether the host can access all memory that the work names.
    pub is_on_host: bool,
    /// Whether the node stands for the end of a whole graph. Such a node is never updated.
    pub ends_graph: bool,
    /// The result of [`BackendGraphs::prepare`] for the work.
    pub prepared: PreparedNode,
}

/// The data that a backend needs for a node in addition to its work.
pub type PreparedNode = Option<Box<dyn Any + Send + Sync>>;

/// All nodes of an executable graph, as one run sees them.
pub type GraphNodes = Arc<Vec<Arc<GraphNode>>>;

/// One run of an executable graph.
pub struct GraphRun {
    pub nodes: GraphNodes,
    /// The driver's graph, if the backend has [`BackendGraphs`].
    pub driver_graph: Option<Arc<dyn BackendGraph>>,
    /// The number of bytes that one run copies.
    pub copied: u64,
    /// The counter of copied bytes of the graph's context.
    pub counter: Arc<AtomicU64>,
    /// The nodes of earlier runs that only the driver's graph still kept. They are dropped together
    /// with this run and without a lock, because they may keep objects of the program.
    pub replaced: Mutex<SmallVec<[GraphNodes; 1]>>,
}

impl GraphRun {
    /// Returns the work of all nodes, in an order that satisfies all dependencies.
    pub fn works(&self) -> impl DoubleEndedIterator<Item = &Work> + ExactSizeIterator {
        self.nodes.iter().map(|node| node.work.work())
    }
}

/// A factory of the driver's graphs. Its calls may wait for the device, as loading a program may.
pub trait BackendGraphs {
    /// Prepares a node for the driver's graph.
    fn prepare(&self, work: &Work) -> Result<PreparedNode>;

    /// Creates a graph from prepared nodes.
    fn instantiate(&self, nodes: &GraphNodes) -> Result<Arc<dyn BackendGraph>>;
}

/// An executable graph of the driver. For [`Work::Graph`], a backend launches it with the nodes of
/// that run, because runs before and after an update have different nodes.
pub trait BackendGraph: Any + Send + Sync {
    /// Returns whether a run may replace the node at `index` by `node`, which differs only in its
    /// work.
    fn accepts(&self, index: usize, node: &GraphNode) -> bool;
}
