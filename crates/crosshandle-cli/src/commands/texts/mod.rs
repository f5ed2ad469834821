//! Texts about the command line itself, and about handles.

#[cfg(feature = "texts")]
pub(super) mod completions;
pub(super) mod inspect;
#[cfg(feature = "texts")]
pub(super) mod man;
