//! Texts about the command line itself, and about handles.

pub(super) mod completions;
pub(super) mod inspect;
pub(super) mod man;
