//! The objects that programs use. They check every argument once, and the backends rely on that.

pub(crate) mod bundle;
pub mod channel;
pub(crate) mod command;
pub(crate) mod context;
pub(crate) mod core;
pub(crate) mod device;
pub(crate) mod event;
pub mod holder;
pub(crate) mod image;
pub(crate) mod memory;
pub(crate) mod native;
pub(crate) mod physical;
pub(crate) mod program;
pub(crate) mod queue;
pub mod report;
pub(crate) mod virtual_range;

#[cfg(test)]
mod wait_list_tests;
