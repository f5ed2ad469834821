//! The entry points that begin and end the capture of a queue.

use super::Graph;
use super::capture::Capture;
use crate::abi::boundary::{Out, entry_points};
use crate::abi::failure::Failure;
use crate::abi::object::{Handle, Shared};
use crate::queue::Queue;
use std::ptr;
use unified_runtime_sys::{ur_bool_t, ur_exp_graph_handle_t, ur_queue_exp_dditable_t, ur_result_t};

entry_points! {
    fn begin(queue: Handle<Queue>) {
        Capture::begin(queue, Graph::create(queue.context()), false)
    }

    fn begin_into(queue: Handle<Queue>, graph: Handle<Graph>) {
        if !ptr::eq(&**queue.context(), &*graph.context) {
            return Err(Failure::argument("this graph belongs to another context than the queue"));
        }
        Capture::begin(queue, graph.to_ref(), true)
    }

    fn end(queue: Handle<Queue>, ended: Out<ur_exp_graph_handle_t>) {
        let (graph, is_programs) = Capture::end(queue).or_else(|failure| {
            ended.put(ptr::null_mut())?;
            Err(failure)
        })?;
        ended.put(match is_programs {
            true => graph.handle(),
            false => Shared::hand_out(graph),
        })
    }

    fn is_enabled(queue: Handle<Queue>, result: Out<ur_bool_t>) {
        result.put(queue.capture_slot().capture().is_some().into())
    }

    fn get_graph(queue: Handle<Queue>, graph: Out<ur_exp_graph_handle_t>) {
        match queue.capture_slot().capture() {
            Some(capture) => graph.put(capture.graph().handle()),
            None => {
                graph.put(ptr::null_mut())?;
                Err(Failure::new(
                    ur_result_t::UR_RESULT_ERROR_INVALID_OPERATION,
                    "this queue is not being captured",
                ))
            }
        }
    }
}

/// The experimental entry points for queues.
pub(crate) const TABLE: ur_queue_exp_dditable_t = ur_queue_exp_dditable_t {
    pfnBeginGraphCaptureExp: Some(begin),
    pfnBeginCaptureIntoGraphExp: Some(begin_into),
    pfnEndGraphCaptureExp: Some(end),
    pfnIsGraphCaptureEnabledExp: Some(is_enabled),
    pfnGetGraphExp: Some(get_graph),
};
