//! The raw techniques: what a careful programmer would write straight on the kernel's calls for
//! one purpose, with nothing checked, counted or cleaned up that the purpose does not need.

pub(crate) mod counter;
pub(crate) mod cuda;
pub(crate) mod descriptor;
pub(crate) mod level_zero;
pub(crate) mod memfd;
pub(crate) mod slab;
