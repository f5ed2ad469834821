//! Graphs of the driver.
//!
//! Each step that a node's work takes in a stream becomes one of the driver's nodes. These nodes
//! run one after the other. An executable graph owns one driver graph, which is *brought up to
//! date* right before a launch, so that it does the nodes of that run. An update therefore costs
//! nothing until the next run. A run does what was submitted, even if the graph is updated before
//! the driver gets the run.
//!
//! The driver makes each launch of a graph wait for the previous launch, in whatever stream that
//! is. Runs must therefore reach the driver in the order in which they were submitted. A pending
//! run delays the later runs of its graph ([`Turn`]). Otherwise a run could wait for another run
//! that waits for its own signal.

use super::work::{self, Extra, Target};
use crate::context::CudaContext;
use crate::device::{Gpu, await_condition};
use crate::driver::{
    DeviceAddress, FillWord, Graph, GraphHandle, Home, RectCopy, Rows, Side, Step, StreamHandle,
};
use crate::program::{self, DriverLaunch};
use crate::scheduler::Urgency;
use crosshandle_hal::{
    BackendGraph, BackendGraphs, GraphNode, GraphNodes, GraphRun, NativeRecording, PreparedNode,
    Work,
};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use smallvec::SmallVec;
use std::any::Any;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a row of a copy in a graph. Longer copies consist of several rows. The driver accepts a
/// row pitch of up to 2 GiB - 1.
const GRAPH_COPY_ROW: usize = 1 << 30;

/// Maximum time that the creation of a graph waits until the graph is on the device. If the device
/// does not have it by then, the first launch may be slower.
const GRAPH_UPLOAD_WAIT: Duration = Duration::from_millis(100);

/// Estimate of the device memory that a node of a graph uses, in bytes, because the driver does not
/// report it. It only counts towards [`QUIET_MAX_BYTES`].
const GRAPH_NODE_BYTES: usize = 1 << 10;

/// Maximum number of calls that a launch of a graph is counted as.
const GRAPH_MAX_CALLS: u32 = 100;

/// One step of a node, which one node of the driver does.
enum Part {
    Copy(RectCopy),
    Fill {
        to: DeviceAddress,
        word: FillWord,
        count: usize,
        home: Home,
    },
    /// The launch that is the node's work.
    Launch,
    /// The recording that is the node's work.
    Child(GraphHandle),
}

/// The steps of a node, and the memory that they use in addition to the node's operands.
struct Prepared {
    parts: SmallVec<[Part; 1]>,
    _extra: Extra,
}

/// A target that collects the steps of copies and fills.
struct Parts<'a> {
    gpu: &'a Gpu,
    parts: SmallVec<[Part; 1]>,
}

impl Target for Parts<'_> {
    unsafe fn copy(&mut self, to: DeviceAddress, from: DeviceAddress, len: usize) -> Result<()> {
        // The driver limits the length of a row. A long copy consists of one copy of many rows, and
        // one copy of the remaining bytes.
        let (rows, rest) = (len / GRAPH_COPY_ROW, len % GRAPH_COPY_ROW);
        let copy = |offset: usize, width: usize, rows: usize| {
            let place = |start: DeviceAddress| {
                Side::Rows(Rows {
                    start: start + offset as DeviceAddress,
                    row_pitch: width,
                    slice_rows: rows,
                    is_unknown: false,
                })
            };
            RectCopy {
                to: place(to),
                from: place(from),
                sizes: [width, rows, 1],
            }
        };
        if rows > 0 {
            // SAFETY: the call only records the copy.
            unsafe { self.copy_rect(&copy(0, GRAPH_COPY_ROW, rows))? };
        }
        if rest > 0 {
            // SAFETY: the call only records the copy.
            unsafe { self.copy_rect(&copy(len - rest, rest, 1))? };
        }
        Ok(())
    }

    unsafe fn copy_rect(&mut self, copy: &RectCopy) -> Result<()> {
        self.parts.push(Part::Copy(copy.located(self.gpu.driver())));
        Ok(())
    }

    unsafe fn fill(&mut self, to: DeviceAddress, word: FillWord, count: usize) -> Result<()> {
        let home = self.gpu.driver().home(to);
        self.parts.push(Part::Fill {
            to,
            word,
            count,
            home,
        });
        Ok(())
    }
}

impl BackendGraphs for CudaContext {
    fn prepare(&self, work: &Work) -> Result<PreparedNode> {
        prepare(self.gpu(), work)
    }

    fn instantiate(&self, nodes: &GraphNodes) -> Result<Arc<dyn BackendGraph>> {
        instantiate(self.gpu(), nodes)
    }
}

/// Returns the driver's steps for the work of a node.
fn prepare(gpu: &Arc<Gpu>, work: &Work) -> Result<PreparedNode> {
    let _current = gpu.enter()?;
    let extra = work::prepare(gpu, work)?;
    let mut target = Parts {
        gpu,
        parts: SmallVec::new(),
    };
    match work {
        Work::Launch(launch) => {
            // A launch that the driver would refuse later is refused here.
            program::driver_launch(gpu, launch)?;
            target.parts.push(Part::Launch);
        }
        Work::Recorded(recorded) => {
            let recorded = recorded.downcast_ref::<RecordedGraph>();
            let recorded = recorded.filter(|recorded| recorded.gpu.is_in_context_of(gpu));
            let recorded = recorded.ok_or_else(|| {
                Error::invalid("these commands were recorded in another of the driver's contexts")
            })?;
            target.parts.push(Part::Child(recorded.handle));
        }
        // SAFETY: the call only records the steps.
        work => unsafe { work::transfer(&mut target, work, &extra)? },
    }
    let parts = target.parts;
    Ok(Some(Box::new(Prepared {
        parts,
        _extra: extra,
    })))
}

fn prepared(node: &GraphNode) -> Result<&Prepared> {
    let prepared = node.prepared.as_deref();
    let prepared = prepared.and_then(|prepared| prepared.downcast_ref());
    prepared.ok_or_else(|| Error::invalid("this node was recorded for another driver"))
}

/// An executable graph of the driver. A deferred call destroys it when no stream waits, as it does
/// with programs, because the driver does not document whether it returns earlier.
struct CudaGraph {
    gpu: Arc<Gpu>,
    /// The range of driver nodes that belongs to each node.
    places: Vec<Range<usize>>,
    /// Number of calls that a launch is counted as. Updates do not change it, because each node
    /// keeps its kind.
    calls: u32,
    state: Mutex<State>,
    pending: Arc<PendingRuns>,
}

/// The runs of a graph that the driver does not have yet, in order.
#[derive(Default)]
struct PendingRuns(Mutex<VecDeque<u64>>);

/// The place of a pending run among the pending runs of its graph. The place is given up on drop.
pub(super) struct Turn {
    runs: Arc<PendingRuns>,
    number: u64,
}

impl Turn {
    /// Queues a pending command behind the other pending runs of its graph. Returns `None` if the
    /// command launches no driver graph.
    pub(super) fn take(work: &Work) -> Option<Self> {
        let runs = Arc::clone(&graph_of(work)?.pending);
        let mut pending = runs.0.lock();
        let number = pending.back().map_or(0, |last| last + 1);
        pending.push_back(number);
        drop(pending);
        Some(Self { runs, number })
    }

    /// Returns whether no earlier run of the same graph is pending. `turn` is the command's own
    /// turn if the command is pending.
    pub(super) fn has_come(work: &Work, turn: Option<&Self>) -> bool {
        match graph_of(work) {
            None => true,
            Some(graph) => {
                let first = graph.pending.0.lock().front().copied();
                first.is_none_or(|first| turn.is_some_and(|turn| turn.number == first))
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.runs.0.lock().retain(|number| *number != self.number);
    }
}

/// Returns the driver graph that a command launches.
fn graph_of(work: &Work) -> Option<&CudaGraph> {
    match work {
        Work::Graph(run) => of_run(run),
        _ => None,
    }
}

fn of_run(run: &GraphRun) -> Option<&CudaGraph> {
    let graph = run.driver_graph.as_deref()? as &dyn Any;
    graph.downcast_ref()
}

struct State {
    /// The driver's graph, which is taken on drop.
    graph: Option<Graph>,
    /// The nodes that the driver's graph does now.
    nodes: GraphNodes,
    /// Whether an update failed half-way, so that all nodes must be updated again.
    is_unknown: bool,
}

/// Converts a step to the form that the driver accepts, and passes it to `act`.
fn with_step<R>(
    gpu: &Gpu,
    node: &GraphNode,
    part: &Part,
    act: impl FnOnce(Step<'_>) -> Result<R>,
) -> Result<R> {
    match (part, node.work.work()) {
        (Part::Copy(copy), _) => act(Step::Copy(copy)),
        (
            Part::Fill {
                to, word, count, ..
            },
            _,
        ) => act(Step::Fill(*to, *word, *count)),
        (Part::Launch, Work::Launch(launch)) => {
            let DriverLaunch {
                function,
                grid,
                mut arguments,
            } = program::driver_launch(gpu, launch)?;
            act(Step::Launch(function, grid, &mut arguments))
        }
        (Part::Launch, _) => act(Step::Empty),
        (Part::Child(child), _) => act(Step::Child(*child)),
    }
}

/// Creates a driver graph of prepared nodes. The driver may wait for streams, so the caller holds
/// no lock.
fn instantiate(gpu: &Arc<Gpu>, nodes: &GraphNodes) -> Result<Arc<dyn BackendGraph>> {
    let _current = gpu.enter()?;
    let mut graph = gpu.driver().create_graph(gpu.context()?)?;
    let mut places: Vec<Range<usize>> = Vec::with_capacity(nodes.len());
    for node in &**nodes {
        let ends = node.after.iter().map(|index| &places[*index as usize]);
        let mut after: SmallVec<[usize; 4]> = ends.map(|place| place.end - 1).collect();
        after.sort_unstable();
        after.dedup();
        let parts = &prepared(node)?.parts;
        let mut place = None::<Range<usize>>;
        let mut add = |step: Step<'_>| {
            // SAFETY: the graph keeps its nodes, which keep the objects that their work uses. The
            // creator of a launch has promised the rest.
            let index = unsafe { graph.add(step, &after)? };
            after.clear();
            after.push(index);
            let start = place.as_ref().map_or(index, |place| place.start);
            place = Some(start..index + 1);
            Ok(())
        };
        if parts.is_empty() {
            add(Step::Empty)?;
        }
        for part in parts {
            with_step(gpu, node, part, &mut add)?;
        }
        places.extend(place);
    }
    graph.instantiate()?;
    upload(gpu, &graph);
    Ok(Arc::new(CudaGraph {
        gpu: Arc::clone(gpu),
        calls: calls_of_launch(nodes)?,
        places,
        state: Mutex::new(State {
            graph: Some(graph),
            nodes: Arc::clone(nodes),
            is_unknown: false,
        }),
        pending: Arc::default(),
    }))
}

/// Returns the number of calls that a launch of a graph of prepared nodes is counted as. Measured
/// on driver 580: a waiting stream takes as many launches of a graph of copies as single copies. A
/// launch of other nodes takes as much room as the nodes.
fn calls_of_launch(nodes: &GraphNodes) -> Result<u32> {
    let mut count: u32 = 0;
    let mut are_copies = true;
    for node in &**nodes {
        let parts = &prepared(node)?.parts;
        count = count.saturating_add(parts.len() as u32);
        are_copies &= parts.iter().all(|part| matches!(part, Part::Copy(_)));
    }
    let most = if are_copies { 1 } else { GRAPH_MAX_CALLS };
    Ok(count.clamp(1, most))
}

/// Returns the number of calls that a run of a graph is counted as.
pub(super) fn calls(run: &GraphRun) -> u32 {
    let whole = || (run.nodes.len() as u32).clamp(1, GRAPH_MAX_CALLS);
    of_run(run).map_or_else(whole, |graph| graph.calls)
}

/// Uploads a graph to the device before its first launch. If the upload fails, the first launch
/// does it.
fn upload(gpu: &Arc<Gpu>, graph: &Graph) {
    let Ok(Some(stream)) = gpu.pool().try_take(gpu) else {
        return;
    };
    let handle = stream.handle();
    let uploaded = graph.upload(handle);
    let is_done = || !matches!(gpu.driver().is_stream_done(handle), Ok(false));
    match uploaded {
        Ok(()) if await_condition(GRAPH_UPLOAD_WAIT, is_done) => gpu.pool().put(stream),
        Ok(()) => {}
        Err(error) => tracing::debug!(%error, "a graph is put on the device by its first launch"),
    }
}

impl BackendGraph for CudaGraph {
    fn accepts(&self, index: usize, node: &GraphNode) -> bool {
        let state = self.state.lock();
        let (Some(present), Ok(new)) = (state.nodes.get(index), prepared(node)) else {
            return false;
        };
        let Ok(old) = prepared(present) else {
            return false;
        };
        let mut pairs = old.parts.iter().zip(&new.parts);
        // The driver cannot change the rows of a copy, or the kind of memory that a copy or a fill
        // uses.
        let is_alike = |(old, new): (&Part, &Part)| match (old, new) {
            (Part::Fill { home: old, .. }, Part::Fill { home: new, .. }) => old == new,
            (Part::Launch, Part::Launch) => true,
            _ => false,
        };
        if old.parts.len() != new.parts.len() || !pairs.all(is_alike) {
            return false;
        }
        match (present.work.work(), node.work.work()) {
            // The driver may refuse another function or other attributes.
            (Work::Launch(old), Work::Launch(new)) => {
                Arc::ptr_eq(&old.kernel, &new.kernel)
                    && old.shape.is_cooperative == new.shape.is_cooperative
                    && old.shape.cluster == new.shape.cluster
            }
            _ => true,
        }
    }
}

impl State {
    /// Updates the driver's graph so that it does `nodes`. Returns the nodes that it did before, or
    /// `None` if the graph was taken.
    fn bring_up(
        &mut self,
        gpu: &Gpu,
        places: &[Range<usize>],
        nodes: &GraphNodes,
    ) -> Result<Option<GraphNodes>> {
        let Some(graph) = &self.graph else {
            return Ok(None);
        };
        let is_unknown = std::mem::replace(&mut self.is_unknown, true);
        for ((node, present), place) in nodes.iter().zip(&*self.nodes).zip(places) {
            if Arc::ptr_eq(node, present) && !is_unknown {
                continue;
            }
            let parts = prepared(node)?.parts.iter().zip(place.clone());
            // Copies never change (see `accepts`).
            for (part, index) in parts.filter(|(part, _)| !matches!(part, Part::Copy(_))) {
                // SAFETY: each run keeps its nodes until it has finished, and brings the graph up
                // to date before its launch. The creator of a kernel launch has promised the rest.
                with_step(gpu, node, part, |step| unsafe { graph.update(index, step) })?;
            }
        }
        self.is_unknown = false;
        Ok(Some(std::mem::replace(&mut self.nodes, Arc::clone(nodes))))
    }
}

/// Launches a graph. The device's context is current.
///
/// # Safety
/// The run stays valid until the stream has passed the launch.
pub(super) unsafe fn launch(gpu: &Gpu, stream: StreamHandle, run: &GraphRun) -> Result<()> {
    let graph = of_run(run)
        .filter(|graph| graph.gpu.is_in_context_of(gpu))
        .ok_or_else(|| Error::invalid("this graph was made in another of the driver's contexts"))?;
    let mut state = graph.state.lock();
    if state.is_unknown || !Arc::ptr_eq(&state.nodes, &run.nodes) {
        let replaced = state.bring_up(gpu, &graph.places, &run.nodes)?;
        // The replaced nodes may keep objects of the program, which must not be dropped while the
        // queue is locked.
        run.replaced.lock().extend(replaced);
    }
    match &state.graph {
        // SAFETY: promised by the caller. The run keeps the graph and its nodes.
        Some(driver_graph) => unsafe { driver_graph.launch(stream) },
        None => Ok(()),
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if let Some(graph) = self.state.lock().graph.take() {
            destroy_later(&self.gpu, graph, self.places.len());
        }
    }
}

/// A graph to which the program adds nodes by calling the driver. It is copied into each graph that
/// contains it as a node.
pub(crate) struct RecordedGraph {
    gpu: Arc<Gpu>,
    handle: GraphHandle,
    /// Taken on drop.
    graph: Mutex<Option<Graph>>,
}

impl RecordedGraph {
    pub(crate) fn create(gpu: &Arc<Gpu>) -> Result<Self> {
        let _current = gpu.enter()?;
        let graph = gpu.driver().create_graph(gpu.context()?)?;
        Ok(Self {
            gpu: Arc::clone(gpu),
            handle: graph.description(),
            graph: Mutex::new(Some(graph)),
        })
    }
}

impl NativeRecording for RecordedGraph {
    fn raw(&self) -> usize {
        self.handle.number()
    }

    fn finish(self: Arc<Self>) -> Result<Work> {
        Ok(Work::Recorded(self))
    }
}

impl Drop for RecordedGraph {
    fn drop(&mut self) {
        if let Some(graph) = self.graph.lock().take() {
            destroy_later(&self.gpu, graph, 1);
        }
    }
}

/// Destroys a graph of about this many nodes when no stream waits.
fn destroy_later(gpu: &Arc<Gpu>, graph: Graph, nodes: usize) {
    // The deferred function may be dropped without a call. That must not destroy the graph,
    // whose context may have ended by then, together with the graph.
    let graph = ManuallyDrop::new(graph);
    let bytes = nodes.saturating_mul(GRAPH_NODE_BYTES);
    let destroy = gpu.later("destroying a graph", move |driver| {
        driver.map(|_| drop(ManuallyDrop::into_inner(graph)))
    });
    let scheduler = gpu.scheduler();
    scheduler.call_later(Urgency::WhenQuiet, bytes, destroy);
}
