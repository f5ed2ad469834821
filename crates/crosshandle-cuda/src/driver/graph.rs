//! Graphs: their descriptions, and the executable graphs that are created from them.
//!
//! For all calls, the graph's context must be current (see `Driver::enter`).

use super::library::GraphLibrary;
use super::{
    ContextHandle, DeviceAddress, Driver, FillWord, FunctionHandle, GraphHandle, GraphNodeHandle,
    GraphRunHandle, Grid, RectCopy, StreamHandle,
};
use crosshandle_os::process;
use crosshandle_types::error::{Error, Result};
use cudarc::driver::sys::{CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEMSET_NODE_PARAMS};
use std::ffi::{c_uint, c_void};
use std::ptr;

/// The work of one node of a driver graph.
pub(crate) enum Step<'a> {
    /// No work: the node only orders other nodes.
    Empty,
    Copy(&'a RectCopy),
    /// A fill with a repeated word. The address is aligned for the word.
    Fill(DeviceAddress, FillWord, usize),
    /// The nodes of another graph as they are now. The driver copies them.
    Child(GraphHandle),
    /// A launch of a function. Each argument has a place of the parameter's size.
    Launch(FunctionHandle, Grid, &'a mut [*mut c_void]),
}

/// A graph and its description. After [`instantiate`](Self::instantiate), the driver has an
/// executable copy. A graph may be dropped only if no stream runs it.
pub(crate) struct Graph {
    driver: &'static Driver,
    library: &'static GraphLibrary,
    context: ContextHandle,
    description: GraphHandle,
    nodes: Vec<GraphNodeHandle>,
    run: Option<GraphRunHandle>,
}

impl Driver {
    /// Returns whether the driver has all functions for graphs.
    pub(crate) fn has_graphs(&self) -> bool {
        self.library.graphs.is_some()
    }

    /// Creates a graph without nodes for the current context, which is `context`.
    pub(crate) fn create_graph(&'static self, context: ContextHandle) -> Result<Graph> {
        let library = self.library.graphs.as_ref().ok_or_else(|| {
            Error::Unsupported(
                "this NVIDIA driver lacks functions for graphs; submit the commands one by one"
                    .into(),
            )
        })?;
        let mut description = GraphHandle::NONE;
        let code = (library.graph_create)(&mut description, 0);
        self.check("cuGraphCreate", code)?;
        Ok(Graph {
            driver: self,
            library,
            context,
            description,
            nodes: Vec::new(),
            run: None,
        })
    }
}

impl Graph {
    /// Returns the description, to which the program may add nodes too.
    pub(crate) fn description(&self) -> GraphHandle {
        self.description
    }

    /// Adds a node that runs after other nodes, which are given by their indices. Returns the index
    /// of the new node.
    ///
    /// # Safety
    /// Everything that the step names stays valid as long as the graph can be launched with it. A
    /// function's arguments match its parameters in number and size.
    pub(crate) unsafe fn add(&mut self, step: Step<'_>, after: &[usize]) -> Result<usize> {
        let after: Vec<_> = after.iter().map(|index| self.nodes[*index]).collect();
        let (before, count) = (after.as_ptr(), after.len());
        let mut node = GraphNodeHandle::NONE;
        let (driver, graph) = (self.driver, self.description);
        let library = self.library;
        // SAFETY: the result, the preceding nodes and the parameters are live, and are read before
        // the call returns. The nodes belong to this graph. The caller promises the rest.
        unsafe {
            match step {
                Step::Empty => {
                    let code = (library.graph_add_empty)(&mut node, graph, before, count);
                    driver.check("cuGraphAddEmptyNode", code)?;
                }
                Step::Child(child) => {
                    let add = library.graph_add_child;
                    let code = add(&mut node, graph, before, count, child);
                    driver.check("cuGraphAddChildGraphNode", code)?;
                }
                Step::Copy(copy) => {
                    let parameters = copy.description();
                    let add = library.graph_add_memcpy;
                    let code = add(&mut node, graph, before, count, &parameters, self.context);
                    driver.check("cuGraphAddMemcpyNode", code)?;
                }
                Step::Fill(to, word, times) => {
                    let parameters = fill_parameters(to, word, times);
                    let add = library.graph_add_memset;
                    let code = add(&mut node, graph, before, count, &parameters, self.context);
                    driver.check("cuGraphAddMemsetNode", code)?;
                }
                Step::Launch(function, grid, arguments) => {
                    let parameters = launch_parameters(function, grid, arguments, self.context);
                    let code =
                        (library.graph_add_kernel)(&mut node, graph, before, count, &parameters);
                    driver.check_launch("cuGraphAddKernelNode", code)?;
                    for attribute in grid.attributes() {
                        let set = library.graph_set_attribute;
                        let code = set(node, attribute.id as c_uint, &attribute.value);
                        driver.check_launch("cuGraphKernelNodeSetAttribute", code)?;
                    }
                }
            }
        }
        self.nodes.push(node);
        Ok(self.nodes.len() - 1)
    }

    /// Creates the executable graph. No node is added after this call.
    pub(crate) fn instantiate(&mut self) -> Result<()> {
        let mut run = GraphRunHandle::NONE;
        let code = (self.library.graph_instantiate)(&mut run, self.description, 0);
        self.driver
            .check_launch("cuGraphInstantiateWithFlags", code)?;
        self.run = Some(run);
        Ok(())
    }

    /// Replaces the work of a node by other work of the same kind, for later launches.
    ///
    /// # Safety
    /// As for [`add`](Self::add).
    pub(crate) unsafe fn update(&self, index: usize, step: Step<'_>) -> Result<()> {
        let (driver, node) = (self.driver, self.nodes[index]);
        let library = self.library;
        let Some(run) = self.run else {
            return Ok(());
        };
        // SAFETY: the parameters are live, and are read before the call returns. The node belongs
        // to this graph. The caller promises the rest.
        unsafe {
            match step {
                // Such nodes are never replaced in place.
                Step::Empty | Step::Child(_) => Ok(()),
                Step::Copy(copy) => {
                    let parameters = copy.description();
                    let code = (library.graph_run_set_memcpy)(run, node, &parameters, self.context);
                    driver.check("cuGraphExecMemcpyNodeSetParams", code)
                }
                Step::Fill(to, word, times) => {
                    let parameters = fill_parameters(to, word, times);
                    let code = (library.graph_run_set_memset)(run, node, &parameters, self.context);
                    driver.check("cuGraphExecMemsetNodeSetParams", code)
                }
                Step::Launch(function, grid, arguments) => {
                    let parameters = launch_parameters(function, grid, arguments, self.context);
                    let code = (library.graph_run_set_kernel)(run, node, &parameters);
                    driver.check_launch("cuGraphExecKernelNodeSetParams", code)
                }
            }
        }
    }

    /// Uploads the graph to the device, so that the first launch takes no longer than later ones.
    pub(crate) fn upload(&self, stream: StreamHandle) -> Result<()> {
        let Some(run) = self.run else {
            return Ok(());
        };
        // SAFETY: the graph and the stream are live. The graph is not dropped before the stream has
        // run the upload.
        let code = unsafe { (self.library.graph_upload)(run, stream) };
        self.driver.check("cuGraphUpload", code)
    }

    /// Launches the graph.
    ///
    /// # Safety
    /// The graph, and everything that its nodes name, stays valid until the stream has run this
    /// launch.
    pub(crate) unsafe fn launch(&self, stream: StreamHandle) -> Result<()> {
        let Some(run) = self.run else {
            return Ok(());
        };
        // SAFETY: promised by the caller.
        let code = unsafe { (self.library.graph_launch)(run, stream) };
        self.driver.check_launch("cuGraphLaunch", code)
    }
}

fn fill_parameters(to: DeviceAddress, word: FillWord, times: usize) -> CUDA_MEMSET_NODE_PARAMS {
    let (value, size) = match word {
        FillWord::Byte(byte) => (c_uint::from(byte), 1),
        FillWord::Half(half) => (c_uint::from(half), 2),
        FillWord::Word(word) => (word, 4),
    };
    CUDA_MEMSET_NODE_PARAMS {
        dst: to,
        pitch: 0,
        value,
        elementSize: size,
        width: times,
        height: 1,
    }
}

fn launch_parameters(
    function: FunctionHandle,
    grid: Grid,
    arguments: &mut [*mut c_void],
    context: ContextHandle,
) -> CUDA_KERNEL_NODE_PARAMS_v2 {
    CUDA_KERNEL_NODE_PARAMS_v2 {
        func: ptr::with_exposed_provenance_mut(function.number()),
        gridDimX: grid.blocks[0],
        gridDimY: grid.blocks[1],
        gridDimZ: grid.blocks[2],
        blockDimX: grid.threads[0],
        blockDimY: grid.threads[1],
        blockDimZ: grid.threads[2],
        sharedMemBytes: grid.dynamic_shared,
        kernelParams: arguments.as_mut_ptr(),
        extra: ptr::null_mut(),
        kern: ptr::null_mut(),
        ctx: ptr::with_exposed_provenance_mut(context.number()),
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        let library = self.library;
        if let Some(run) = self.run {
            // SAFETY: this object created the executable graph and destroys it once. Nothing
            // launches it any more.
            let code = unsafe { (library.graph_run_destroy)(run) };
            self.driver.note("cuGraphExecDestroy", code);
        }
        // SAFETY: this object created the description and destroys it once. Nothing uses its nodes
        // any more.
        let code = unsafe { (library.graph_destroy)(self.description) };
        self.driver.note("cuGraphDestroy", code);
    }
}
