//! Code that several backends share.

pub mod host_memory;
pub mod leak_registry;
pub mod pieced_segment;
pub mod user_code;
