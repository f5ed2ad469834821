//! The cases, one file for each topic.

pub(crate) mod access;
pub(crate) mod attacked;
pub(crate) mod capabilities;
pub(crate) mod commands;
pub(crate) mod deaths;
pub(crate) mod diverted_sleepers;
pub(crate) mod events;
pub(crate) mod exchange;
pub(crate) mod faults;
pub(crate) mod handles;
pub(crate) mod hostile;
pub(crate) mod impostor;
pub(crate) mod kernels;
pub(crate) mod late_exporter;
pub(crate) mod limits;
pub(crate) mod memory;
pub(crate) mod memory_lifetime;
pub(crate) mod namespaces;
pub(crate) mod physical;
pub(crate) mod pools;
pub(crate) mod queue_events;
pub(crate) mod queues;
pub(crate) mod random;
pub(crate) mod rectangles;
pub(crate) mod stopped;
pub(crate) mod timeline;
