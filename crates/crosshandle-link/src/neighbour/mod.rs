//! Sharing a link between processes of one host. One process has the link, and other processes
//! reach the remote host's memory and events through it.

mod client;
#[doc(hidden)]
pub mod message;
mod server;
#[allow(unsafe_code)]
mod socket;

pub use client::{NeighbourEvent, NeighbourLink, NeighbourMemory};
pub use server::SharedLink;
