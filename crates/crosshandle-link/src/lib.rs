//! Links between hosts, through which a process opens handles that were created on another machine.
//!
//! Processes on one host share memory and events. Memory on another host cannot be shared or
//! mapped. Instead, a program reads, writes and copies it over a [`Link`] between the two hosts.
//! The program opens handles from the remote host through the link. Memory opens as a
//! [`RemoteMemory`]. An event opens as a [`RemoteEvent`]. Its mirror is an ordinary local event
//! that any thread can wait for. The bytes travel over UCX, which is loaded at run time, or over
//! TLS.
//!
//! ```no_run
//! use crosshandle::{Context, Device};
//! use crosshandle_link::{Identity, Link, LinkOptions, Listener, Token};
//!
//! # fn owner(token: Token) -> Result<(), Box<dyn std::error::Error>> {
//! // A process on the host that has the objects.
//! let context = Context::new(&Device::find("host")?)?;
//! let memory = context.allocate(1 << 20)?;
//! let ready = context.create_event()?;
//! println!("{} {}", memory.handle()?, ready.handle()?);
//! let options = LinkOptions::new(Identity::Token(token)).interface("eth0");
//! let listener = Listener::bind("192.0.2.1:7417", &context, &options)?;
//! let link = listener.accept();
//! ready.wait_value(1)?;
//! # drop(link);
//! # Ok(())
//! # }
//!
//! # fn user(token: Token, memory: &str, ready: &str) -> Result<(), Box<dyn std::error::Error>> {
//! // A process on another host. It has the same token, and the two handles as text.
//! let context = Context::new(&Device::find("host")?)?;
//! let options = LinkOptions::new(Identity::Token(token)).interface("eth0");
//! let link = Link::connect("192.0.2.1:7417", &context, &options)?;
//! let memory = link.open_memory(&memory.parse()?)?;
//! let ready = link.open_event(&ready.parse()?)?;
//! memory.write(0, b"hello")?;
//! // A process that sees the signal also sees the bytes.
//! ready.signal()?;
//! # Ok(())
//! # }
//! ```
//!
//! `docs/hosts.md` describes the protocol, the attacks that links prevent, and measurements.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[doc(hidden)]
pub mod control;
mod directory;
mod error;
mod event;
#[allow(unsafe_code)]
mod link;
#[allow(unsafe_code)]
mod memory;
mod name;
#[doc(hidden)]
pub mod neighbour;
mod options;
mod tuning;
#[allow(unsafe_code)]
mod ucx;
mod wait;
mod wire;

/// The UCX calls that a link makes, for a benchmark that compares links with plain UCX. Programs
/// must not use this module.
#[doc(hidden)]
pub mod bare {
    pub use crate::ucx::worker::{Registration, RemoteKey, Request, Settings, Worker};
}

pub use control::identity::{Certificates, Identity, Token};
pub use directory::HostDirectory;
pub use error::{Error, Result};
pub use event::{PendingSignal, RemoteEvent};
pub use link::Link;
pub use link::listener::Listener;
pub use memory::RemoteMemory;
pub use name::{RemoteName, RemotePart};
pub use neighbour::{NeighbourEvent, NeighbourLink, NeighbourMemory, SharedLink};
pub use options::{Data, LinkOptions, Staging};
pub use ucx::{UCX_VARIABLE, UcxInfo, ucx, ucx_transports};
