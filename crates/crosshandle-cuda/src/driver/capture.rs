//! Streams that other code captures into a graph.
//!
//! For all calls, the stream's context must be current (see `Driver::enter`).

use super::library::CaptureLibrary;
use super::{Driver, GraphHandle, GraphNodeHandle, StreamHandle, UserObjectHandle};
use crosshandle_types::error::{Error, Result};
use cudarc::driver::sys::{CUstreamCaptureStatus, CUuserObject_flags, CUuserObjectRetain_flags};
use std::ffi::{c_uint, c_void};
use std::ptr;

/// A capture of a stream.
#[derive(Clone, Copy)]
pub(crate) struct Capture {
    /// The driver's number of the capture. No other capture of the process has it.
    pub number: u64,
    pub graph: GraphHandle,
}

impl Driver {
    fn captures(&self) -> Result<&CaptureLibrary> {
        self.library.captures.as_ref().ok_or_else(|| {
            Error::Unsupported("this NVIDIA driver lacks functions for captured streams".into())
        })
    }

    /// Returns the active capture that records commands of a stream. Returns an error for a capture
    /// that a call has invalidated.
    pub(crate) fn capture(&self, stream: StreamHandle) -> Result<Capture> {
        let mut capture = Capture {
            number: 0,
            graph: GraphHandle::NONE,
        };
        let mut status: c_uint = 0;
        // SAFETY: the places are valid, and null asks for no dependencies.
        self.check("cuStreamGetCaptureInfo", unsafe {
            (self.captures()?.capture_info)(
                stream,
                &mut status,
                &mut capture.number,
                &mut capture.graph,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        })?;
        if status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE as c_uint {
            return Err(Error::invalid(
                "the capture of this stream is not active any more",
            ));
        }
        Ok(capture)
    }

    /// Returns the nodes that the next command of a captured stream follows. Returns an error if
    /// the driver cannot describe them, because other code has recorded a special kind of
    /// dependency.
    pub(crate) fn captured_before(&self, stream: StreamHandle) -> Result<Vec<GraphNodeHandle>> {
        let mut status: c_uint = 0;
        let (mut number, mut graph) = (0, GraphHandle::NONE);
        let (mut nodes, mut count) = (ptr::null(), 0_usize);
        // SAFETY: the places are valid.
        self.check("cuStreamGetCaptureInfo", unsafe {
            (self.captures()?.capture_info)(
                stream,
                &mut status,
                &mut number,
                &mut graph,
                &mut nodes,
                &mut count,
            )
        })?;
        if nodes.is_null() || count == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: the driver keeps the list until the next call for the stream.
        Ok(unsafe { std::slice::from_raw_parts(nodes, count) }.to_vec())
    }

    /// Returns the nodes that a node of a graph follows directly.
    ///
    /// # Safety
    /// The node belongs to a graph that exists.
    pub(crate) unsafe fn nodes_before(
        &self,
        node: GraphNodeHandle,
    ) -> Result<Vec<GraphNodeHandle>> {
        let library = self.captures()?;
        let mut count = 0_usize;
        // SAFETY: null asks for the number of nodes alone. The caller vouches for the node.
        self.check("cuGraphNodeGetDependencies", unsafe {
            (library.node_dependencies)(node, ptr::null_mut(), &mut count)
        })?;
        let mut nodes = vec![GraphNodeHandle::NONE; count];
        if count > 0 {
            // SAFETY: there is room for `count` nodes.
            self.check("cuGraphNodeGetDependencies", unsafe {
                (library.node_dependencies)(node, nodes.as_mut_ptr(), &mut count)
            })?;
        }
        nodes.truncate(count);
        Ok(nodes)
    }

    /// Makes a graph, and all executable graphs and runs made from it, keep an object. When the
    /// last of them has ended, the driver calls `release` on a thread that must not call the
    /// driver.
    ///
    /// # Safety
    /// The graph is being captured. `release(object)` may be called once, from any thread, and does
    /// not unwind. It is also called if this function fails.
    pub(crate) unsafe fn keep_in_graph(
        &self,
        graph: GraphHandle,
        object: *mut c_void,
        release: unsafe extern "C" fn(*mut c_void),
    ) -> Result<()> {
        let library = match self.captures() {
            Ok(library) => library,
            Err(error) => {
                // SAFETY: promised by the caller.
                unsafe { release(object) };
                return Err(error);
            }
        };
        let mut kept = UserObjectHandle::NONE;
        let flags = CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as c_uint;
        // SAFETY: promised by the caller.
        let created = self.check("cuUserObjectCreate", unsafe {
            (library.user_object_create)(&mut kept, object, release, 1, flags)
        });
        if let Err(error) = created {
            // SAFETY: promised by the caller. The driver did not take the object.
            unsafe { release(object) };
            return Err(error);
        }
        let flags = CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as c_uint;
        // SAFETY: the object is from above, and the caller vouches for the graph.
        let retained = self.check("cuGraphRetainUserObject", unsafe {
            (library.graph_retain)(graph, kept, 1, flags)
        });
        if retained.is_err() {
            // SAFETY: this function still has its reference.
            let code = unsafe { (library.user_object_release)(kept, 1) };
            self.note("cuUserObjectRelease", code);
        }
        retained
    }
}
