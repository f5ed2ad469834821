//! The raw techniques: code that a careful programmer would write for a single purpose, directly on
//! the calls of the kernel or of a driver. It checks, counts and cleans up only what that purpose
//! needs.

pub(crate) mod counter;
pub(crate) mod cuda;
pub(crate) mod descriptor;
pub(crate) mod memfd;
pub(crate) mod newcomer;
pub(crate) mod slab;
