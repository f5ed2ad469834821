//! Graphs of the driver.

use std::ffi::c_uint;
use std::ptr;

use anyhow::Result;
use cudarc::driver::sys::{CUgraphExec, CUstreamCaptureMode};

use super::{Gpu, Stream};

/// An executable graph, which lives as long as the process.
pub(crate) struct Graph {
    gpu: Gpu,
    handle: CUgraphExec,
}

impl Graph {
    /// Creates a graph of the work that `record` queues in a stream.
    pub(crate) fn record(
        gpu: &Gpu,
        stream: &Stream,
        record: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        let library = gpu.library;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint;
        let (mut graph, mut handle) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the stream lives as long as the process.
        library.check("cuStreamBeginCapture", unsafe {
            (library.stream_begin_capture)(stream.handle(), mode)
        })?;
        let recorded = record();
        // SAFETY: `graph` is valid for the result; the stream is being captured.
        library.check("cuStreamEndCapture", unsafe {
            (library.stream_end_capture)(stream.handle(), &mut graph)
        })?;
        recorded?;
        // SAFETY: `handle` is valid for the result, and the driver returned `graph`.
        library.check("cuGraphInstantiate", unsafe {
            (library.graph_instantiate)(&mut handle, graph, 0)
        })?;
        Ok(Self { gpu: *gpu, handle })
    }

    #[inline]
    pub(crate) fn launch(&self, stream: &Stream) -> Result<()> {
        let library = self.gpu.library;
        // SAFETY: the graph and the stream live as long as the process, and the graph's memory
        // lives as long as it is launched.
        library.check("cuGraphLaunch", unsafe {
            (library.graph_launch)(self.handle, stream.handle())
        })
    }
}
