//! The parts that all entry points share: how these are entered, handles, failures, queries, native
//! handles, and stubs for what is not implemented. Nothing here knows an object of Unified Runtime's.

pub(crate) mod boundary;
pub(crate) mod chain;
pub(crate) mod description;
pub(crate) mod failure;
pub(crate) mod lock;
pub(crate) mod log;
pub(crate) mod native;
pub(crate) mod object;
pub(crate) mod query;
pub(crate) mod stub;
pub(crate) mod unsupported;
