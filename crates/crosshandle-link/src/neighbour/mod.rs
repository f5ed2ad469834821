//! Sharing of a link between processes on one host. One process has the link. Other processes
//! access remote memory and remote events through it.

mod client;
#[doc(hidden)]
pub mod message;
mod server;
#[allow(unsafe_code)]
mod socket;

pub use client::{NeighbourEvent, NeighbourLink, NeighbourMemory};
pub use server::SharedLink;
