//! The sockets for shared links, and the check of the connected process's user.

use super::message::MAX_LEN;
use crate::error::{Error, Result};
use crate::tuning::FIRST_REQUEST_TIMEOUT;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum time that a neighbour waits for a reply from the process that shares the link. It is
/// longer than the [timeout](REPLY_TIMEOUT) for a request over the link, so that a request does
/// not fail while the link still waits for its reply. With a longer time, a stopped process is
/// detected later.
const NEIGHBOUR_REPLY_TIMEOUT: Duration = Duration::from_secs(90);

/// File extension of the sockets for shared links.
const SUFFIX: &str = "link";
/// Maximum length in bytes of a shared link's name.
const MAX_NAME: usize = 64;
/// Maximum number of connections that wait to be accepted.
const UNACCEPTED: i32 = 16;
/// The default value of `kernel.overflowuid`.
const USUAL_OVERFLOW_UID: u32 = 65534;

/// A listening socket, and the file lock that marks its name as being in use.
pub(super) struct Named {
    pub(super) socket: OwnedFd,
    path: PathBuf,
    _lock: File,
}

impl Drop for Named {
    fn drop(&mut self) {
        // This process still holds the lock, so the file is its own socket.
        let _ = fs::remove_file(&self.path);
    }
}

fn check_name(name: &str) -> Result<()> {
    let is_fit = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    match !name.is_empty()
        && name.len() <= MAX_NAME
        && name.chars().all(is_fit)
        && !name.starts_with('.')
    {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "the name of a shared link has 1 to {MAX_NAME} letters, digits, '-', '_' and '.', and no '.' first"
        ))),
    }
}

fn directories(chosen: Option<&Path>) -> Vec<PathBuf> {
    chosen.map_or_else(crosshandle::report::socket_directories, |path| {
        vec![path.to_owned()]
    })
}

fn new_socket() -> Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    );
    socket.map_err(Error::os("making a socket for neighbours"))
}

/// Listens under a name in the socket directory, which is created if it does not exist.
pub(super) fn listen(name: &str, chosen: Option<&Path>) -> Result<Named> {
    check_name(name)?;
    let directory = directories(chosen).swap_remove(0);
    let doing = "listening for neighbours in the socket directory";
    match DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Error::os(doing)(error));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(&directory).map_err(Error::os(doing))?;
    let own = rustix::process::geteuid().as_raw();
    if !found.is_dir() || found.uid() != own || found.mode() & 0o022 != 0 {
        return Err(Error::invalid(format!(
            "{} is not a directory that belongs to this user and that only this user can change",
            directory.display()
        )));
    }
    let path = directory.join(format!("{name}.{SUFFIX}"));
    let lock = File::create(path.with_added_extension("lock")).map_err(Error::os(doing))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            return Err(Error::invalid(format!(
                "another process already shares a link as '{name}'"
            )));
        }
        Err(fs::TryLockError::Error(error)) => return Err(Error::os(doing)(error)),
    }
    // This process holds the lock, so the previous user of the name has ended. Remove its socket.
    let _ = fs::remove_file(&path);
    let socket = new_socket()?;
    let address = SocketAddrUnix::new(&path).map_err(Error::os(doing))?;
    rustix::net::bind(&socket, &address).map_err(Error::os(doing))?;
    let named = Named {
        socket,
        path,
        _lock: lock,
    };
    rustix::net::listen(&named.socket, UNACCEPTED).map_err(Error::os(doing))?;
    Ok(named)
}

/// Connects to the process that shares a link under this name.
pub(super) fn find(name: &str, chosen: Option<&Path>) -> Result<OwnedFd> {
    check_name(name)?;
    let doing = "connecting to the process that shares its link";
    for directory in directories(chosen) {
        let path = directory.join(format!("{name}.{SUFFIX}"));
        let address = SocketAddrUnix::new(&path).map_err(Error::os(doing))?;
        let socket = new_socket()?;
        for (which, limit) in [
            // The timeout for sending also limits connecting, which blocks if the queue of a
            // stopped process is full.
            (Timeout::Send, FIRST_REQUEST_TIMEOUT),
            (Timeout::Recv, NEIGHBOUR_REPLY_TIMEOUT),
        ] {
            set_socket_timeout(&socket, which, Some(limit)).map_err(Error::os(doing))?;
        }
        match connect(&socket, &address) {
            Ok(()) => {
                process_of(&socket)?;
                return Ok(socket);
            }
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::CONNREFUSED) => {}
            Err(rustix::io::Errno::AGAIN) => return Err(Error::TimedOut(doing)),
            Err(error) => return Err(Error::os(doing)(error)),
        }
    }
    Err(Error::invalid(format!(
        "no process of this user shares a link as '{name}': 'crosshandle link share' does"
    )))
}

/// Returns the id of the connected process, or 0 if the process is not visible in this PID
/// namespace. Fails if the process belongs to another user.
pub(super) fn process_of(socket: impl AsFd) -> Result<i32> {
    let peer = credentials(&socket).map_err(Error::os("reading the peer's credentials"))?;
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid");
    let overflow = overflow.ok().and_then(|text| text.trim().parse().ok());
    // Users that this user namespace does not map all appear under the overflow id, so reject that
    // id.
    match peer.uid == rustix::process::geteuid().as_raw()
        && peer.uid != overflow.unwrap_or(USUAL_OVERFLOW_UID)
    {
        true => Ok(peer.pid),
        false => Err(Error::invalid(
            "the connected process belongs to another user",
        )),
    }
}

/// Returns the credentials that the connected process had when it connected or listened. rustix has
/// no suitable function, because its type cannot express process id 0.
fn credentials(socket: impl AsFd) -> io::Result<libc::ucred> {
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open. The kernel writes at most `len` bytes to `found`, whose
    // fields may have any value.
    let status = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &mut len,
        )
    };
    match status {
        0 => Ok(found),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends one message.
pub(super) fn say(socket: impl AsFd, bytes: &[u8]) -> rustix::io::Result<()> {
    loop {
        match send(&socket, bytes, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            sent => return sent.map(drop),
        }
    }
}

/// Waits for one message. Returns `None` if the peer has closed the socket, or has sent a message
/// longer than [`MAX_LEN`].
pub(super) fn hear(socket: impl AsFd) -> rustix::io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; MAX_LEN];
    loop {
        // This call provides no buffer for control messages, so the kernel closes file descriptors
        // that the peer sends.
        match recv(&socket, &mut bytes[..], RecvFlags::TRUNC) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
            Ok((_, len)) => {
                let is_whole = 0 < len && len <= MAX_LEN;
                bytes.truncate(len);
                return Ok(is_whole.then_some(bytes));
            }
        }
    }
}
