//! Common parts of all measurements: child processes that can be killed, links between them,
//! clocks, order statistics, the machine's CPUs, and data from `/proc`.

pub(crate) mod child;
pub(crate) mod cpu;
pub(crate) mod launcher;
pub(crate) mod link;
pub(crate) mod measure;
pub(crate) mod outcome;
pub(crate) mod plan;
pub(crate) mod procfs;
pub(crate) mod region;
pub(crate) mod scenario;
pub(crate) mod timing;
