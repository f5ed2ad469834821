//! What several backends share.

pub(crate) mod leak_registry;
