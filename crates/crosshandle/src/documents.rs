//! The pages whose blocks in Rust are documentation tests. `crosshandle-cli` checks the list.

#[doc = include_str!("../../../docs/start.md")]
pub struct Start;

#[doc = include_str!("../../../docs/tutorial-rust.md")]
pub struct Tutorial;

#[doc = include_str!("../../../docs/channels.md")]
pub struct Channels;
