//! The code that all entry points share: the C boundary, handles, failures, queries, native
//! handles, and stubs for unsupported calls. This module does not depend on the modules of UR
//! objects.

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
