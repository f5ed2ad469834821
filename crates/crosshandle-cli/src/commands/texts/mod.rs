//! Texts that are made of the command line itself.

pub(super) mod completions;
pub(super) mod man;
