//! Control: an authenticated connection that carries everything but the bytes of memory.

pub(crate) mod channel;
pub(crate) mod handshake;
pub(crate) mod identity;
pub mod message;
