//! Graphs: work that is recorded once, and run as one command any number of times.
//!
//! A backend whose driver has graphs makes one of the nodes ([`Graphs`]) and launches that. The others
//! replay: for [`Work::Graph`] they do the work of all nodes one after the other, in the order in which they
//! were recorded, which is a valid one.

use super::Work;
use crate::error::{Error, Result};
use crate::sync::Mutex;
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The work of a node: a copy, a fill, a launch or none, which can be done any number of times.
pub(crate) struct RecordedWork(Work);

// SAFETY: `new` refuses `Call` and `Native`, the only variants with parts that threads must not share: a
// function each. All other parts are values, `Arc`s of objects that are `Sync`, and boxes of these. Nothing
// changes the work once it is made.
unsafe impl Sync for RecordedWork {}

impl RecordedWork {
    /// Takes work that can be repeated.
    pub(crate) fn new(work: Work) -> Result<Self> {
        match work {
            Work::Marker
            | Work::Copy { .. }
            | Work::CopyRect(_)
            | Work::CopyImage(_)
            | Work::Fill { .. }
            | Work::Fill2d(_)
            | Work::Launch(_) => Ok(Self(work)),
            Work::Call(_) | Work::Native(_) => Err(Error::Unsupported(
                "functions of the program cannot be recorded in a graph: they run once; submit them \
                 between two runs"
                    .into(),
            )),
            // A graph records another one's nodes, so this is an update.
            Work::Graph(_) => Err(Error::Unsupported(
                "a graph cannot take the place of a node".into(),
            )),
        }
    }

    pub(crate) fn work(&self) -> &Work {
        &self.0
    }
}

/// A node of an executable graph. It never changes: an update puts another one in its place, and runs that
/// were submitted before keep this one.
pub(crate) struct GraphNode {
    pub(crate) work: Arc<RecordedWork>,
    /// The nodes that come before, as indices that are less than the node's own.
    pub(crate) after: Arc<[u32]>,
    /// The host can access all memory that the work names.
    pub(crate) is_on_host: bool,
    /// The node stands for the end of a whole graph, and is never updated.
    pub(crate) ends_graph: bool,
    /// What [`Graphs::prepare`] has made of the work.
    pub(crate) prepared: PreparedNode,
}

/// What a backend needs of a node besides its work.
pub(crate) type PreparedNode = Option<Box<dyn Any + Send + Sync>>;

/// All nodes of an executable graph, as one of its runs sees them.
pub(crate) type GraphNodes = Arc<Vec<Arc<GraphNode>>>;

/// One run of an executable graph.
pub(crate) struct GraphRun {
    pub(crate) nodes: GraphNodes,
    /// The driver's graph, in a backend with [`Graphs`].
    pub(crate) driver_graph: Option<Arc<dyn DriverGraph>>,
    /// The bytes that one run copies.
    pub(crate) copied: u64,
    /// The counter of the bytes that commands of the graph's context copy: each context has its own.
    pub(crate) counter: Arc<AtomicU64>,
    /// What the driver's graph did before this run, if it was the last to keep it: it goes with the run, with
    /// no lock held, since it may keep objects of the program.
    pub(crate) replaced: Mutex<SmallVec<[GraphNodes; 1]>>,
}

impl GraphRun {
    /// Returns the work of all nodes, in an order that satisfies all dependencies.
    pub(crate) fn works(&self) -> impl DoubleEndedIterator<Item = &Work> + ExactSizeIterator {
        self.nodes.iter().map(|node| node.work.work())
    }
}

/// The maker of a driver's graphs. A call may wait for the device, as the loading of programs may.
pub(crate) trait Graphs {
    /// Makes what the driver's graph needs of a node.
    fn prepare(&self, work: &Work) -> Result<PreparedNode>;

    /// Makes a graph of prepared nodes.
    fn instantiate(&self, nodes: &GraphNodes) -> Result<Arc<dyn DriverGraph>>;
}

/// An executable graph of a driver. A backend launches it for [`Work::Graph`], with the nodes of that run:
/// the runs of one graph see different nodes after an update.
pub(crate) trait DriverGraph: Any + Send + Sync {
    /// Returns whether a run may have another node in the place of one, which differs in its work only.
    fn accepts(&self, index: usize, node: &GraphNode) -> bool;
}
