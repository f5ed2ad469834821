//! The process that keeps other processes' memory under names, and its successor. The client that
//! programs use is `crosshandle::holder`, and [`message`] has what the two say to each other.
//!
//! Internal to `crosshandle`: this crate promises no stable interface.

#![deny(unsafe_code)]
#![allow(missing_docs, rustdoc::private_intra_doc_links)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod exchange;
mod identity;
mod journal;
pub mod message;
mod proof;
mod segment;
mod server;
mod state;
mod succession;

pub use segment::{Drivers, fetch_held};
pub use server::LogLevel;

use crosshandle_ipc::broker::{PeerPolicy, address};
use crosshandle_os::{descriptor, process};
use crosshandle_types::error::{Error, Result};
use server::{Log, Server, Terms};
use state::Holdings;
use std::ffi::OsString;
use std::fmt;
use std::io::stdin;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use succession::{SuccessorCommand, follow};

/// Options of a holder, for `serve` and `serve_as_successor`.
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
    /// Returns the default options: the default socket directory, peers of the same user, and no
    /// successor.
    pub fn new() -> Self {
        Self {
            socket_dir: None,
            peers: PeerPolicy::SameUser,
            successor: None,
            stop: None,
            log: Arc::new(|_, _| {}),
        }
    }

    /// Sets the socket directory of the holder. A successor uses the directory of its holder.
    pub fn socket_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.socket_dir = Some(directory.into());
        self
    }

    /// Sets the users whose processes may send requests, hand memory over and open it (default: the
    /// same user).
    pub fn peers(mut self, peers: PeerPolicy) -> Self {
        self.peers = peers;
        self
    }

    /// Sets the command that starts a successor. Its program must call `serve_as_successor` with
    /// the standard input that it receives. Without a successor, the held memory is released when
    /// the holder ends.
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

    /// Sets a descriptor that ends the holder. Once it becomes readable, the holder releases
    /// everything and ends.
    pub fn stop_when_readable(mut self, descriptor: OwnedFd) -> Self {
        self.stop = Some(descriptor);
        self
    }

    /// Sets the function that receives each log line of the holder (default: none).
    pub fn log(mut self, log: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Self {
        self.log = Arc::new(log);
        self
    }

    fn terms(self, drivers: Drivers) -> (Option<PathBuf>, Terms) {
        let terms = Terms {
            policy: self.peers,
            successor: self.successor,
            stop: self.stop,
            log: self.log,
            drivers,
        };
        (self.socket_dir, terms)
    }
}

/// Runs a holder, as `crosshandle::holder::serve` documents.
///
/// # Errors
/// Those of `crosshandle::holder::serve`.
pub fn serve(options: ServeOptions, drivers: Drivers, ready: impl FnOnce()) -> Result<()> {
    if process::is_forked() {
        return Err(Error::forked());
    }
    let (directory, terms) = options.terms(drivers);
    let path = address::directories(directory.as_deref()).swap_remove(0);
    let given = descriptor::handed_by_service_manager();
    let server = Server::begin(path, given, terms)?;
    server.say_begin();
    ready();
    server.run()
}

/// Follows a holder, as `crosshandle::holder::serve_as_successor` documents.
///
/// # Errors
/// Those of `crosshandle::holder::serve_as_successor`.
pub fn serve_as_successor(
    options: ServeOptions,
    drivers: Drivers,
    ready: impl FnOnce(),
) -> Result<()> {
    // `setsid` fails for the leader of a process group, which the holder's terminal does not signal
    // anyway.
    let _ = rustix::process::setsid();
    let (_, terms) = options.terms(drivers);
    let holdings = Holdings::new(terms.policy.clone());
    let stop = terms.stop.as_ref().map(AsFd::as_fd);
    let Some(inheritance) = follow(stdin().as_fd(), stop, holdings, drivers)? else {
        return Ok(());
    };
    let server = Server::take_over(inheritance, terms)?;
    ready();
    server.run()
}
