//! A listening socket, at which each newcomer asks for descriptors over a connection of its own.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread;

use anyhow::{Context, Result};

use super::descriptor::OfferedDescriptors;

/// Returns the name of the socket of process `pid`.
fn address(pid: u32) -> Result<SocketAddr> {
    Ok(SocketAddr::from_abstract_name(format!(
        "crosshandle-bench-{pid}"
    ))?)
}

/// Starts a thread that serves the offered descriptors to all newcomers, until the process ends.
pub(crate) fn serve(offers: &OfferedDescriptors) -> Result<()> {
    let listener = UnixListener::bind_addr(&address(std::process::id())?)?;
    let offers = offers.clone();
    thread::Builder::new()
        .name("raw-listener".to_owned())
        .spawn(move || {
            for newcomer in listener.incoming().flatten() {
                if let Err(error) = offers.serve(newcomer.into()) {
                    // The newcomer sees the socket close and fails.
                    eprintln!("raw exporter: {error:#}");
                }
            }
        })
        .map(drop)
        .context("cannot start a thread")
}

/// Connects to process `pid`, as a newcomer does.
pub(crate) fn connect(pid: u32) -> Result<UnixStream> {
    UnixStream::connect_addr(&address(pid)?).context("cannot connect")
}
