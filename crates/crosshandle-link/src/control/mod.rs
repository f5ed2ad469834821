//! The control connection, which is authenticated and carries everything except the bytes of
//! memory.

pub(crate) mod channel;
pub(crate) mod handshake;
pub(crate) mod identity;
pub mod message;
