//! Holders: processes that keep memory when its makers have ended.
//!
//! A program hands an allocation over ([`Memory::hand_over`](crate::Memory::hand_over)). From then on the
//! holder answers for it: handles that were made before stay good, also for processes that have never
//! opened one, and the maker may end. The holder keeps descriptors and has no driver context: the kernel
//! and the driver count descriptors, and keep the memory as long as there is one.
//!
//! A holder is two processes. The second one, the *successor*, has duplicates of all descriptors and the
//! same table of names. When the first one dies, however it dies, the successor goes on under the same
//! names, and starts a successor of its own. Who has memory open notices nothing.
//!
//! ```no_run
//! use crosshandle::holder::Holder;
//! use crosshandle::{Context, ContextOptions, Device};
//!
//! # fn main() -> crosshandle::Result<()> {
//! // `crosshandle hold` runs. The loader:
//! let holder = Holder::new();
//! let options = ContextOptions::new().pooling(false);
//! let context = Context::with_options(&Device::find("host")?, options)?;
//! let weights = context.allocate(1 << 30)?;
//! weights.hand_over(&holder, "weights")?;
//! // It may end now. Another program:
//! let context = Context::new(&Device::find("host")?)?;
//! let held = holder.open("weights")?;
//! let handle = held.parts[0].read_only.expect("it was asked for");
//! let weights = context.open_memory_read_only(&handle)?;
//! # Ok(())
//! # }
//! ```
//!
//! `docs/holder.md` in the repository has the protocol, what survives what, and figures.

mod client;
mod fence;
mod identity;
mod journal;
mod message;
mod segment;
mod server;
mod state;
mod succession;
mod tuning;

pub use client::{
    Backup, ClaimOptions, HandedOver, HeldName, HeldPart, HoldOptions, Holder, Lease,
};
pub use message::{Recovered, Status};
pub use server::LogLevel;

use crate::error::{Error, Result};
use crate::ipc::broker::{PeerPolicy, address};
use crate::os::{descriptor, process};
use server::{Log, Server, Terms};
use state::Holdings;
use std::ffi::OsString;
use std::fmt;
use std::io::stdin;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use succession::{SuccessorCommand, follow};

/// What a holder is to be, for [`serve`] and [`serve_as_successor`].
pub struct ServeOptions {
    socket_dir: Option<PathBuf>,
    peers: PeerPolicy,
    successor: Option<SuccessorCommand>,
    stop: Option<OwnedFd>,
    log: Log,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ServeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServeOptions")
            .field("socket_dir", &self.socket_dir)
            .field("peers", &self.peers)
            .field("successor", &self.successor)
            .finish_non_exhaustive()
    }
}

impl ServeOptions {
    /// Returns the usual options: the usual socket directory, the same user, and no successor.
    pub fn new() -> Self {
        Self {
            socket_dir: None,
            peers: PeerPolicy::SameUser,
            successor: None,
            stop: None,
            log: Arc::new(|_, _| {}),
        }
    }

    /// Sets the directory to hold in. A successor takes its holder's.
    pub fn socket_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.socket_dir = Some(directory.into());
        self
    }

    /// Sets the users whose processes may ask, hand over and open (default: the same user's).
    pub fn peers(mut self, peers: PeerPolicy) -> Self {
        self.peers = peers;
        self
    }

    /// Sets the command that starts a successor: a program that calls [`serve_as_successor`] with its
    /// standard input as it is given to it. Without one, what is held ends with the holder.
    pub fn successor(
        mut self,
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        self.successor = Some(SuccessorCommand {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
        });
        self
    }

    /// Sets a descriptor: once it can be read, the holder ends and lets go of everything.
    pub fn stop_when_readable(mut self, descriptor: OwnedFd) -> Self {
        self.stop = Some(descriptor);
        self
    }

    /// Sets what is called with each line that a holder says of itself (default: nothing).
    pub fn log(mut self, log: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Self {
        self.log = Arc::new(log);
        self
    }

    fn terms(self) -> (Option<PathBuf>, Terms) {
        let terms = Terms {
            policy: self.peers,
            successor: self.successor,
            stop: self.stop,
            log: self.log,
        };
        (self.socket_dir, terms)
    }
}

/// Holds on the calling thread until it is told to end, by [`Holder::stop`] or by
/// [`ServeOptions::stop_when_readable`]. `ready` is called once programs can ask.
///
/// A service manager may hand the socket over for which programs ask: the first one of the variables
/// `LISTEN_FDS` and `LISTEN_PID`.
///
/// # Errors
/// [`Error::Holder`] if a holder answers in the directory already; [`Error::InvalidArgument`] if the directory cannot
/// be used, or is removed and does not come back; limits of the system.
pub fn serve(options: ServeOptions, ready: impl FnOnce()) -> Result<()> {
    if process::is_forked() {
        return Err(Error::forked());
    }
    let (directory, terms) = options.terms();
    let path = address::directories(directory.as_deref()).swap_remove(0);
    let given = descriptor::handed_by_service_manager();
    let server = Server::begin(path, given, terms)?;
    server.say_begin();
    ready();
    server.run()
}

/// Follows the holder that started this process, on the calling thread, and goes on in its stead when it
/// dies: then `ready` is called. Returns at once if it died before it had anything, and when what it holds
/// then is to end.
///
/// This process begins a session of its own, unless it leads its process group already: what a terminal tells its
/// programs when it is closed or interrupted is for the holder, which ends its successor if it ends itself.
///
/// # Errors
/// The holder is of a release that this one does not follow; limits of the system.
pub fn serve_as_successor(options: ServeOptions, ready: impl FnOnce()) -> Result<()> {
    // It fails for a leader of a group, which got nothing of the holder's terminal before either.
    let _ = rustix::process::setsid();
    let (_, terms) = options.terms();
    let holdings = Holdings::new(terms.policy.clone());
    let stop = terms.stop.as_ref().map(AsFd::as_fd);
    let Some(inheritance) = follow(stdin().as_fd(), stop, holdings)? else {
        return Ok(());
    };
    let server = Server::take_over(inheritance, terms)?;
    ready();
    server.run()
}
