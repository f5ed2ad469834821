//! Safe, thin wrappers of the operating system, with one topic per module.

pub(crate) mod cgroup;
pub(crate) mod descriptor;
pub(crate) mod descriptor_table;
#[cfg(fault_steps)]
pub(crate) mod fault_steps;
pub(crate) mod fork;
pub(crate) mod futex;
pub(crate) mod lock;
pub(crate) mod mapping;
pub(crate) mod memfd;
pub(crate) mod process;
pub(crate) mod sleepers;
pub(crate) mod socket;
pub(crate) mod tuning;
