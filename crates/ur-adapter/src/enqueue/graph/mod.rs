//! Graphs: queues record commands in a graph, which can then run any number of times.
//!
//! - `recording`: recorded commands and their runs. Command buffers use this module too.
//! - `capture`, `slot`: captures, in which queues record their submissions.
//! - `queue`: the entry points that begin and end a capture.
//! - `executable`: executable graphs.
//! - `dump`: graphs as text.

pub(crate) mod capture;
mod dump;
pub(crate) mod executable;
pub(crate) mod queue;
pub(crate) mod recording;
pub(crate) mod slot;

use crate::abi::boundary::{Out, Text, entry_points};
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::abi::object::{Handle, Object, Ref, Shared, release_once};
use crate::context::Context;
use capture::{Capture, Recorded};
use executable::Executable;
use std::ffi::{OsStr, c_void};
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use unified_runtime_sys::{
    ur_bool_t, ur_exp_executable_graph_handle_t, ur_exp_graph_destruction_callback_t,
    ur_exp_graph_handle_t, ur_exp_graph_handle_t_, ur_graph_exp_dditable_t, ur_native_handle_t,
    ur_result_t,
};

/// A UR graph handle. The graph is empty, is being captured, or has been captured.
pub(crate) struct Graph {
    context: Ref<Context>,
    /// The number of the graph. It is unique in the process, and later graphs have greater numbers.
    id: u64,
    /// The state of the graph. The lock is not held during a driver call.
    contents: Lock<Contents>,
    callbacks: Lock<Vec<Callback>>,
}

enum Contents {
    /// No capture has recorded into the graph.
    New,
    Capturing(Weak<Capture>),
    Captured(Arc<Recorded>),
    /// The capture failed.
    Invalid,
}

/// A function that is called when the graph is destroyed.
struct Callback {
    function: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
}

// SAFETY: the adapter only passes the data to the function. The caller of
// `urGraphSetDestructionCallbackExp` allows the call on the thread that drops the graph. This
// thread may be one that ends a failed capture.
unsafe impl Send for Callback {}

impl Object for Graph {
    type Opaque = ur_exp_graph_handle_t_;
}

fn invalid(message: &'static str) -> Failure {
    Failure::new(ur_result_t::UR_RESULT_ERROR_INVALID_GRAPH, message)
}

impl Graph {
    /// Creates an empty graph. UR does not hold a reference to it yet.
    fn create(context: &Shared<Context>) -> Ref<Self> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Shared::new(Self {
            context: context.to_ref(),
            id: IDS.fetch_add(1, Ordering::Relaxed),
            contents: Lock::new(Contents::New),
            callbacks: Lock::default(),
        })
    }

    /// Marks the graph as being captured.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if the graph has nodes or another capture records into it.
    /// Returns `INVALID_GRAPH` if an earlier capture of the graph failed.
    fn begin(&self, capture: &Arc<Capture>) -> Result<()> {
        let mut contents = self.contents.lock();
        match &*contents {
            Contents::New => {}
            Contents::Captured(recorded) if recorded.nodes.is_empty() => {}
            Contents::Captured(_) => {
                return Err(Failure::argument(
                    "this graph has nodes: a capture needs an empty graph",
                ));
            }
            Contents::Capturing(_) => {
                return Err(Failure::argument("another queue is capturing this graph"));
            }
            Contents::Invalid => return Err(failed_capture()),
        }
        *contents = Contents::Capturing(Arc::downgrade(capture));
        Ok(())
    }

    /// Stores the captured nodes.
    fn fill(&self, recorded: Recorded) {
        *self.contents.lock() = Contents::Captured(Arc::new(recorded));
    }

    /// Marks the graph as invalid because its capture failed.
    fn invalidate(&self) {
        *self.contents.lock() = Contents::Invalid;
    }

    /// Calls `look` with the nodes that have been recorded so far. The argument is `None` if no
    /// capture has begun or the capture has ended.
    ///
    /// # Errors
    /// Returns `INVALID_GRAPH` if the capture of the graph failed.
    fn look<R>(&self, look: impl FnOnce(Option<&Recorded>) -> R) -> Result<R> {
        let recorded = match &*self.contents.lock() {
            Contents::New => None,
            Contents::Capturing(capture) => Some(Err(capture.upgrade())),
            Contents::Captured(recorded) => Some(Ok(Arc::clone(recorded))),
            Contents::Invalid => return Err(failed_capture()),
        };
        match recorded {
            Some(Ok(recorded)) => Ok(look(Some(&recorded))),
            Some(Err(Some(capture))) => Ok(capture.look(look)),
            Some(Err(None)) | None => Ok(look(None)),
        }
    }

    /// Returns the captured graph.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if the graph has no nodes. Returns `INVALID_GRAPH` if the graph
    /// is being captured, or if its capture failed.
    fn captured(&self) -> Result<Arc<Recorded>> {
        match &*self.contents.lock() {
            Contents::Captured(recorded) if !recorded.nodes.is_empty() => Ok(Arc::clone(recorded)),
            Contents::New | Contents::Captured(_) => {
                Err(Failure::argument("this graph has no nodes"))
            }
            Contents::Capturing(_) => Err(invalid("a queue is still capturing this graph")),
            Contents::Invalid => Err(failed_capture()),
        }
    }

    /// Calls the program's callbacks, and invalidates a capture that is still recording into the
    /// graph.
    fn destroy(&self) {
        let capture = match &*self.contents.lock() {
            Contents::Capturing(capture) => capture.upgrade(),
            _ => None,
        };
        if let Some(capture) = capture {
            drop(capture.refuse("the graph into which this capture records was destroyed"));
        }
        let callbacks = mem::take(&mut *self.callbacks.lock());
        call_back(callbacks);
    }
}

impl Drop for Graph {
    /// Calls the remaining callbacks. They exist in two cases: a capture created this graph and
    /// failed, so the program never destroyed the graph, or a callback set another callback.
    fn drop(&mut self) {
        call_back(mem::take(self.callbacks.get_mut()));
    }
}

/// Calls the program's callbacks. The caller must not hold a lock, because a callback may call the
/// adapter.
fn call_back(callbacks: Vec<Callback>) {
    for Callback { function, data } in callbacks {
        // SAFETY: the program allows one call of the function with this data when the graph is
        // destroyed.
        unsafe { function(data) };
    }
}

fn failed_capture() -> Failure {
    invalid("the capture of this graph failed")
}

/// Returns the failure for requesting a native handle of a graph.
fn no_native() -> Failure {
    Failure::unsupported(
        "graphs of this adapter have no native handle, because they are not a single object of a driver",
    )
}

entry_points! {
    fn create(context: Handle<Context>, created: Out<ur_exp_graph_handle_t>) {
        created.put(Shared::hand_out(Graph::create(context)))
    }

    fn instantiate(graph: Handle<Graph>, created: Out<ur_exp_executable_graph_handle_t>) {
        created.put(Executable::create(graph)?)
    }

    fn destroy(graph: Handle<Graph>) {
        graph.destroy();
        // SAFETY: the caller passes a handle on which UR holds a reference.
        unsafe { release_once::<Graph>(graph.handle()) }
    }

    fn is_empty(graph: Handle<Graph>, result: Out<ur_bool_t>) {
        let is_empty = graph.look(|recorded| recorded.is_none_or(|all| all.nodes.is_empty()))?;
        result.put(is_empty.into())
    }

    fn get_id(graph: Handle<Graph>, id: Out<u64>) {
        id.put(graph.id)
    }

    fn set_destruction_callback(
        graph: Handle<Graph>,
        function: ur_exp_graph_destruction_callback_t,
        data: *mut c_void,
    ) {
        let function = function.ok_or(Failure::NULL_POINTER)?;
        graph.callbacks.lock().push(Callback { function, data });
        Ok(())
    }

    fn dump_contents(graph: Handle<Graph>, path: Text) {
        let text = graph.look(|recorded| dump::dot(graph.id, recorded))?;
        let written = std::fs::write(OsStr::from_bytes(path.to_bytes()), text);
        written.map_err(|error| {
            Failure::new(
                ur_result_t::UR_RESULT_ERROR_UNKNOWN,
                format!("cannot write the graph to {}: {error}", path.to_string_lossy()),
            )
        })
    }

    fn get_native_handle(graph: Handle<Graph>, native: Out<ur_native_handle_t>) {
        Err(no_native())
    }
}

/// The entry points for graphs.
pub(crate) const TABLE: ur_graph_exp_dditable_t = ur_graph_exp_dditable_t {
    pfnCreateExp: Some(create),
    pfnInstantiateGraphExp: Some(instantiate),
    pfnDestroyExp: Some(destroy),
    pfnExecutableGraphDestroyExp: Some(executable::destroy),
    pfnIsEmptyExp: Some(is_empty),
    pfnGetIdExp: Some(get_id),
    pfnSetDestructionCallbackExp: Some(set_destruction_callback),
    pfnDumpContentsExp: Some(dump_contents),
    pfnGetNativeHandleExp: Some(get_native_handle),
    pfnExecutableGraphGetNativeHandleExp: Some(executable::get_native_handle),
};
