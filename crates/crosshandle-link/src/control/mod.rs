//! The control connection of a link. It is authenticated and encrypted, and carries all messages.

pub(crate) mod channel;
pub(crate) mod handshake;
pub(crate) mod identity;
pub mod message;
