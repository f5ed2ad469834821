//! A single request to a holder.

use crate::message::{MAX_MESSAGE_BYTES, Reply};
use crosshandle_ipc::broker::{PeerPolicy, control_path};
use crosshandle_os::socket::{self, Granted, Guard, Received};
use crosshandle_os::threads::disposer::{PeerDescriptor, PeerStream};
use crosshandle_types::sync::Deadline;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Space for the last name of a list, in bytes. It may begin within the limit of a message and end
/// beyond it.
const LIST_SLACK: usize = 64 << 10;

/// Sends a request once, to the first holder that listens in one of the directories. Sets `holder`
/// to the process id of the holder, or to 0 if the holder has no id in this PID namespace.
///
/// # Errors
/// Returns [`Errno::NOENT`] if no holder listens, and [`Errno::PERM`] if the holder runs as a user
/// that is not one of `peers`.
pub fn ask_once(
    directories: &[PathBuf],
    peers: &PeerPolicy,
    request: &[u8],
    deadline: Deadline,
    holder: &mut u32,
) -> Result<Reply, Errno> {
    let stream = PeerStream::new(connect(directories, deadline)?, Guard::Look, ());
    let peer = socket::peer(&stream)?;
    *holder = peer.pid;
    if !peers.admits(peer.uid) {
        return Err(Errno::PERM);
    }
    match socket::send(&stream, request, &[]) {
        // The holder has hung up, but may have sent the reason before.
        Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
        Err(errno) => return Err(errno),
    }
    let mut buffer = vec![0; MAX_MESSAGE_BYTES + LIST_SLACK];
    let received: Received<Granted<PeerDescriptor>> =
        socket::receive_until(&stream, &mut buffer, 0, deadline)?;
    let len = match received {
        Received::Message(len, _) => len,
        Received::Unwanted => return Err(Errno::PROTO),
        Received::HungUp => return Err(Errno::CONNRESET),
    };
    serde_json::from_slice(&buffer[..len]).map_err(|_| Errno::PROTO)
}

fn connect(directories: &[PathBuf], deadline: Deadline) -> Result<OwnedFd, Errno> {
    for directory in directories {
        match socket::connect(&control_path(directory), deadline) {
            Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR | Errno::ACCESS) => {}
            result => return result,
        }
    }
    Err(Errno::NOENT)
}
