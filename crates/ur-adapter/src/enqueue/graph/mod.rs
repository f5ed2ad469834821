//! Graphs: queues record commands in them, and run them together any number of times.
//!
//! - `recording`: recorded commands, and how they run. Command buffers use it too.
//! - `capture`, `slot`: queues that record their submissions.
//! - `queue`: the entry points that begin and end a capture.
//! - `executable`: graphs that can run.
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

/// A graph that a queue captures, or has captured.
pub(crate) struct Graph {
    context: Ref<Context>,
    /// Number of the graph, which is unique in the process. Later graphs have greater numbers.
    id: u64,
    /// The lock is never held during a driver call.
    contents: Lock<Contents>,
    callbacks: Lock<Vec<Callback>>,
}

enum Contents {
    /// No capture into the graph has begun.
    New,
    Capturing(Weak<Capture>),
    Captured(Arc<Recorded>),
    /// The capture failed.
    Invalid,
}

/// A function to call when the graph is destroyed.
struct Callback {
    function: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
}

// SAFETY: the data is only passed to the function. The caller of `urGraphSetDestructionCallbackExp`
// allows the call in the thread that destroys the graph, or that ends a capture which fails to fill
// it.
unsafe impl Send for Callback {}

impl Object for Graph {
    type Opaque = ur_exp_graph_handle_t_;
}

fn invalid(message: &'static str) -> Failure {
    Failure::new(ur_result_t::UR_RESULT_ERROR_INVALID_GRAPH, message)
}

impl Graph {
    /// Creates an empty graph without a reference from UR.
    fn create(context: &Shared<Context>) -> Ref<Self> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Shared::new(Self {
            context: context.to_ref(),
            id: IDS.fetch_add(1, Ordering::Relaxed),
            contents: Lock::new(Contents::New),
            callbacks: Lock::default(),
        })
    }

    /// Records that a capture fills this graph.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` for a graph that has nodes or belongs to another capture, and
    /// `INVALID_GRAPH` for a graph whose capture failed.
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

    /// Stores the result of a capture.
    fn fill(&self, recorded: Recorded) {
        *self.contents.lock() = Contents::Captured(Arc::new(recorded));
    }

    /// Marks the graph as invalid because its capture failed.
    fn invalidate(&self) {
        *self.contents.lock() = Contents::Invalid;
    }

    /// Calls `look` with the nodes recorded so far, if any.
    ///
    /// # Errors
    /// Returns `INVALID_GRAPH` after a failed capture.
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
    /// Returns `INVALID_ARGUMENT` for an empty graph, and `INVALID_GRAPH` during a capture or after
    /// a failed one.
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

    /// Calls the program's callbacks, and ends a capture that would fill the graph.
    fn destroy(&self) {
        let capture = match &*self.contents.lock() {
            Contents::Capturing(capture) => capture.upgrade(),
            _ => None,
        };
        if let Some(capture) = capture {
            drop(capture.refuse("the graph that this capture would fill is destroyed"));
        }
        let callbacks = mem::take(&mut *self.callbacks.lock());
        call_back(callbacks);
    }
}

impl Drop for Graph {
    /// Calls the remaining callbacks. They exist if a failed capture created the graph, which the
    /// program never destroys, or if a callback has set another callback.
    fn drop(&mut self) {
        call_back(mem::take(self.callbacks.get_mut()));
    }
}

/// Calls the program's callbacks. The caller must not hold a lock.
fn call_back(callbacks: Vec<Callback>) {
    for Callback { function, data } in callbacks {
        // SAFETY: the program allows one call of the function when the graph is destroyed.
        unsafe { function(data) };
    }
}

fn failed_capture() -> Failure {
    invalid("the capture of this graph failed")
}

/// Returns the failure for a request of a native handle.
fn no_native() -> Failure {
    Failure::unsupported("graphs of this adapter are not a single object of a driver")
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
        // SAFETY: the caller passes a handle that is valid for this call.
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
