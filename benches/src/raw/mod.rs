//! The raw techniques: the code that a careful programmer would write directly on the kernel's
//! calls for one purpose, without checks, counts and clean-up that the purpose does not need.

pub(crate) mod counter;
pub(crate) mod cuda;
pub(crate) mod descriptor;
pub(crate) mod level_zero;
pub(crate) mod memfd;
pub(crate) mod slab;
