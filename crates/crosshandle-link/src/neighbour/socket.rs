//! Sockets of shared links: their paths, and the check of the connected process.

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

/// Maximum time until the process that shares a link replies. It is longer than the
/// [timeout](REPLY_TIMEOUT) of a request over the link. With a shorter time, requests fail to
/// which the link would still have got a reply. With a longer time, a stopped process is noticed
/// later.
const NEIGHBOUR_REPLY_TIMEOUT: Duration = Duration::from_secs(90);

/// File extension of the sockets.
const SUFFIX: &str = "link";
/// Maximum length of a shared link's name, in bytes.
const MAX_NAME: usize = 64;
/// Maximum number of connections that wait to be accepted.
const UNACCEPTED: i32 = 16;
/// Default of `kernel.overflowuid`.
const USUAL_OVERFLOW_UID: u32 = 65534;

/// A listening socket, and the file lock that marks its name as used.
pub(super) struct Named {
    pub(super) socket: OwnedFd,
    path: PathBuf,
    _lock: File,
}

impl Drop for Named {
    fn drop(&mut self) {
        // The lock is still held, so the file is the socket of this process.
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
    // The process that used the name before has ended.
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
            // The timeout for sending also limits connecting, which blocks if a stopped process has
            // a full queue.
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

/// Returns the id of the connected process. Fails if the process belongs to another user. The id is
/// 0 if the process is not visible in this PID namespace.
pub(super) fn process_of(socket: impl AsFd) -> Result<i32> {
    let peer = credentials(&socket).map_err(Error::os("reading the peer's credentials"))?;
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid");
    let overflow = overflow.ok().and_then(|text| text.trim().parse().ok());
    // All users that this user namespace does not map have the overflow user's id, so that id is
    // refused.
    match peer.uid == rustix::process::geteuid().as_raw()
        && peer.uid != overflow.unwrap_or(USUAL_OVERFLOW_UID)
    {
        true => Ok(peer.pid),
        false => Err(Error::invalid(
            "the connected process belongs to another user",
        )),
    }
}

/// Returns the credentials of the connected process at the time when it connected or listened.
/// rustix has no suitable function, because its type cannot express the process id 0.
fn credentials(socket: impl AsFd) -> io::Result<libc::ucred> {
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open. At most `len` bytes are written to the record, whose fields
    // may have any value.
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

/// Waits for one message. Returns `None` if the peer has closed the socket, or has sent more bytes
/// than a message may have.
pub(super) fn hear(socket: impl AsFd) -> rustix::io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; MAX_LEN];
    loop {
        // The call provides no buffer for control messages, so the kernel closes descriptors that
        // the peer sends.
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
