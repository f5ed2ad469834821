//! Executable graphs, which can be enqueued.

use super::recording::Run;
use super::{Graph, no_native};
use crate::abi::boundary::{MaybeOut, Out, entry_points};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, Object, Ref, Shared, release};
use crate::context::Context;
use crate::enqueue::{Submission, WaitList};
use crate::queue::Queue;
use unified_runtime_sys::{
    ur_command_t, ur_event_handle_t, ur_exp_executable_graph_handle_t,
    ur_exp_executable_graph_handle_t_, ur_native_handle_t, ur_result_t,
};

/// A UR executable graph handle. It holds references to all objects that it needs, so the graph
/// from which it was created may be destroyed first.
pub(crate) struct Executable {
    context: Ref<Context>,
    run: Run,
}

impl Object for Executable {
    type Opaque = ur_exp_executable_graph_handle_t_;
}

impl Executable {
    /// Creates an executable graph, and returns its UR handle.
    ///
    /// # Errors
    /// Returns the same errors as [`Graph::captured`]. Returns an error from `crosshandle` if the
    /// driver reaches a limit.
    pub(super) fn create(graph: &Graph) -> Result<ur_exp_executable_graph_handle_t> {
        let captured = graph.captured()?;
        Ok(Shared::hand_out(Shared::new(Self {
            context: graph.context.clone(),
            run: captured.recording.instantiate()?,
        })))
    }
}

/// Destroys an executable graph without waiting for its runs. Running commands hold references to
/// the objects that they need.
pub(super) unsafe extern "C" fn destroy(graph: ur_exp_executable_graph_handle_t) -> ur_result_t {
    // SAFETY: the caller passes null or an executable graph on which UR holds its only reference.
    unsafe { release::<Executable>(graph) }
}

entry_points! {
    pub(super) fn get_native_handle(graph: Handle<Executable>, native: Out<ur_native_handle_t>) {
        Err(no_native())
    }

    pub(crate) fn enqueue(
        queue: Handle<Queue>,
        graph: Handle<Executable>,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        if !std::ptr::eq(&**queue.context(), &*graph.context) {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_QUEUE,
                "this queue belongs to another context than the graph",
            ));
        }
        let submission = Submission::new(queue, waits, event)?;
        graph.run.submit(submission, ur_command_t::UR_COMMAND_ENQUEUE_GRAPH_EXP)
    }
}
