//! The driver's handles, as values.

use cudarc::driver::sys::{
    CUarray, CUcontext, CUevent, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUmipmappedArray,
    CUmodule, CUstream,
};
use std::ptr;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident($raw:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[repr(transparent)]
        pub(crate) struct $name($raw);

        impl $name {
            /// No object: room for the driver to write a handle to.
            pub(super) const NONE: Self = Self(ptr::null_mut());

            /// Returns a handle of the driver's object with this number.
            ///
            /// # Safety
            /// It lives, and will as long as the handle is used.
            #[allow(dead_code, reason = "not all of them come from programs")]
            pub(crate) unsafe fn from_raw(number: usize) -> Self {
                Self(ptr::with_exposed_provenance_mut(number))
            }

            /// Returns the number that the program knows the object by.
            #[allow(dead_code, reason = "programs know not all of them")]
            pub(crate) fn number(self) -> usize {
                self.0.expose_provenance()
            }
        }

        // SAFETY: the driver lets any thread use such an object; here it is only a value.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
    )*};
}

handles! {
    /// A context that lives as long as it is used: the primary one, or one that the program keeps.
    ContextHandle(CUcontext);
    /// A stream, ours or the program's.
    StreamHandle(CUstream);
    /// A point in a stream, as the driver knows them.
    EventHandle(CUevent);
    /// A program.
    ModuleHandle(CUmodule);
    /// A function of a program.
    FunctionHandle(CUfunction);
    /// The description of a graph.
    GraphHandle(CUgraph);
    /// A node in it.
    GraphNodeHandle(CUgraphNode);
    /// A graph that can be launched.
    GraphRunHandle(CUgraphExec);
    /// Pixels whose layout is the driver's affair.
    ArrayHandle(CUarray);
    /// Arrays of several levels.
    LevelsHandle(CUmipmappedArray);
}
