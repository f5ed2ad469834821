//! The operating system, thin and safe: one topic a module.

pub(crate) mod descriptor;
pub(crate) mod futex;
pub(crate) mod keeper;
pub(crate) mod lock;
pub(crate) mod mapping;
pub(crate) mod memfd;
pub(crate) mod nudge;
pub(crate) mod process;
pub(crate) mod socket;
