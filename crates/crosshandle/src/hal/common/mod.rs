//! Code that several backends share.

pub(crate) mod leak_registry;
pub(crate) mod pieced_segment;
pub(crate) mod user_code;
