//! The driver's handles, as values.

use cudarc::driver::sys::{
    CUarray, CUcontext, CUevent, CUexternalMemory, CUfunction, CUgraph, CUgraphExec, CUgraphNode,
    CUmipmappedArray, CUmodule, CUstream, CUuserObject,
};
use std::ptr;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident($raw:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[repr(transparent)]
        pub(crate) struct $name($raw);

        impl $name {
            /// The handle of no object, over which the driver can write a handle.
            pub(super) const NONE: Self = Self(ptr::null_mut());

            /// Returns the handle of the driver object with this number.
            ///
            /// # Safety
            /// The object is alive, and stays alive as long as the handle is used.
            #[allow(dead_code, reason = "not all of them come from programs")]
            pub(crate) unsafe fn from_raw(number: usize) -> Self {
                Self(ptr::with_exposed_provenance_mut(number))
            }

            /// Returns the number by which the program knows the object.
            #[allow(dead_code, reason = "programs know not all of them")]
            pub(crate) fn number(self) -> usize {
                self.0.expose_provenance()
            }
        }

        // SAFETY: this type contains only the handle's value, and the driver accepts the object
        // from any thread.
        unsafe impl Send for $name {}
        // SAFETY: this type contains only the handle's value, and the driver accepts the object
        // from any thread.
        unsafe impl Sync for $name {}
    )*};
}

handles! {
    /// A context that stays alive as long as the handle is used: the primary context, or a context
    /// that the program keeps.
    ContextHandle(CUcontext);
    /// A stream of this library or of the program.
    StreamHandle(CUstream);
    /// An event of the driver, which marks a point in a stream.
    EventHandle(CUevent);
    /// A loaded program, which the driver calls a module.
    ModuleHandle(CUmodule);
    /// A function of a loaded program.
    FunctionHandle(CUfunction);
    /// The description of a graph, to which nodes can be added.
    GraphHandle(CUgraph);
    /// A node of a graph.
    GraphNodeHandle(CUgraphNode);
    /// An executable graph, which the driver creates from a description.
    GraphRunHandle(CUgraphExec);
    /// An array of pixels, whose layout the driver chooses.
    ArrayHandle(CUarray);
    /// An image of several levels, each of which is an array.
    LevelsHandle(CUmipmappedArray);
    /// An object that graphs keep alive.
    UserObjectHandle(CUuserObject);
    /// Memory that was imported from another interface, such as Vulkan.
    ExternalHandle(CUexternalMemory);
}
