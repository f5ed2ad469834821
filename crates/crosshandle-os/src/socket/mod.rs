//! Unix sockets that preserve message boundaries and carry descriptors.
//!
//! A descriptor from a stranger is dangerous even when it is closed. The last close of some files
//! blocks the closing thread for as long as the stranger wants. Examples are a TCP socket with
//! `SO_LINGER`, a file in FUSE, and a device that hangs. It does not matter whether the thread
//! wanted the descriptor. A receive without room for the descriptor closes it, and so does closing
//! a socket that has it in its queue. Hence:
//!
//! - A receiver that expects no descriptors lets the kernel refuse them ([`Guard::Kernel`]), or
//!   peeks at each message before it takes the message ([`Guard::Look`]).
//! - A receiver that expects descriptors first peeks, which duplicates them while the queue keeps
//!   the originals, and only then takes the message. None of these closes is therefore the last
//!   one. The type `D` of [`receive_until`] decides what happens to the duplicates.
//! - A socket whose queue may not be empty ([`end`]) is not closed on a thread that others need.

pub mod interrupt;
mod messages;
#[cfg(test)]
mod tests;

pub use messages::{
    FEW_DESCRIPTORS, Granted, MAX_DESCRIPTORS, Pending, Received, drop_message, has_unread,
    pending, receive, receive_until, send, send_until, unread_bytes,
};

use super::lock::last_error;
use crosshandle_types::sync::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::time::Duration;

/// Maximum timeout that is set on a socket, one year, because the kernel's counter is limited.
const MAX_SOCKET_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | SocketFlags::CLOEXEC;
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Makes a pair of connected sockets.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC;
    net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// The protection of a socket against unexpected descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guard {
    /// The kernel refuses to send descriptors to the socket (Linux 6.16).
    Kernel,
    /// The receiver peeks at every message before it takes the message.
    Look,
}

/// Refuses descriptors at a socket and at the connections that it accepts from now on. Messages
/// that are already in the queue stay there.
pub fn refuse_descriptors(socket: impl AsFd) -> Guard {
    match forbid_descriptors(socket.as_fd()) {
        Ok(()) => Guard::Kernel,
        Err(_) => Guard::Look,
    }
}

fn forbid_descriptors(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    /// Option of Linux 6.16, with this value on all supported architectures. The C library does not
    /// define it.
    const SO_PASSRIGHTS: libc::c_int = 83;
    let value: libc::c_int = 0;
    // SAFETY: the descriptor is open during the call, and the kernel reads one int at the address.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            ptr::from_ref(&value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match result {
        -1 => Err(last_error()),
        _ => Ok(()),
    }
}

/// Listens at `path`, which must not exist, for peers that send no descriptors.
pub fn listen(path: &Path) -> Result<(OwnedFd, Guard), Errno> {
    let listener = socket(SocketFlags::NONBLOCK)?;
    // The guard is set before a connection can exist.
    let guard = refuse_descriptors(&listener);
    net::bind(&listener, &SocketAddrUnix::new(path)?)?;
    net::listen(&listener, 128)?;
    Ok((listener, guard))
}

/// Accepts the next connection, if there is one. The connection has its listener's [`Guard`].
pub fn accept(listener: impl AsFd) -> Result<OwnedFd, Errno> {
    net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Connects to the socket at `path`. Waits until `deadline` for room in its queue, and then fails
/// with [`Errno::TIMEDOUT`].
pub fn connect(path: &Path, deadline: Deadline) -> Result<OwnedFd, Errno> {
    let stream = socket(SocketFlags::empty())?;
    connect_to(&stream, path, deadline)?;
    Ok(stream)
}

fn connect_to(stream: &OwnedFd, path: &Path, deadline: Deadline) -> Result<(), Errno> {
    let address = SocketAddrUnix::new(path)?;
    let deadline = interrupt::deadline(deadline);
    loop {
        let step = interrupt::step(deadline);
        if let Some(left) = left(step) {
            // A timeout of zero would mean no timeout.
            let left = left.max(Duration::from_micros(1));
            net::sockopt::set_socket_timeout(stream, net::sockopt::Timeout::Send, Some(left))?;
        }
        match net::connect(stream, &address) {
            Err(Errno::AGAIN | Errno::INTR) if deadline.is_over() => {
                return Err(Errno::TIMEDOUT);
            }
            Err(Errno::AGAIN | Errno::INTR) => interrupt::check()?,
            result => return result,
        }
    }
}

/// Returns the time until `deadline`, limited to the maximum of the kernel.
fn left(deadline: Deadline) -> Option<Duration> {
    let left = deadline.remaining()?;
    Some(left.min(MAX_SOCKET_TIMEOUT))
}

/// Connects to the socket at `path` and hangs up. Does not wait for room in its queue
/// ([`Errno::AGAIN`]). [`Errno::CONNREFUSED`] means that no process listens there.
pub fn try_connect(path: &Path) -> Result<(), Errno> {
    let stream = socket(SocketFlags::NONBLOCK)?;
    net::connect(&stream, &SocketAddrUnix::new(path)?)
}

/// The process that was connected to a socket when the connection was made.
pub struct Peer {
    /// Its effective user id, as seen in this process's user namespace.
    pub uid: u32,
    /// Its process id in this process's PID namespace, or 0 if it has none there.
    pub pid: u32,
    /// Whether the peer is this process itself.
    pub is_self: bool,
}

/// Returns the peer of a connection.
pub fn peer(stream: impl AsFd) -> Result<Peer, Errno> {
    // rustix cannot be used, because it treats the process id 0 as an error. The kernel returns 0
    // for a process in a PID namespace that is not visible here.
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open during the call. The kernel writes at most `len` bytes to
    // `peer`, where any bytes are valid.
    let result = unsafe {
        libc::getsockopt(
            stream.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            ptr::from_mut(&mut peer).cast(),
            &mut len,
        )
    };
    if result == -1 {
        return Err(last_error());
    }
    let own = rustix::process::getpid().as_raw_nonzero().get();
    Ok(Peer {
        uid: peer.uid,
        pid: peer.pid.try_into().unwrap_or(0),
        is_self: peer.pid == own,
    })
}

/// Shuts down a connection, including copies of its descriptor.
pub fn hang_up(stream: impl AsFd) {
    // It fails only if the connection has already ended.
    let _ = net::shutdown(&stream, Shutdown::Both);
}

/// Shuts down a connection, including copies of its descriptor, and returns whether closing it is
/// harmless. Closing is harmless if the queue is empty, because no more messages arrive.
pub fn end(stream: impl AsFd) -> bool {
    // The end of a connection reads like an empty message. With SO_PASSCRED, however, a message
    // carries its sender's credentials, and the kernel reports that even if there is no room for
    // them.
    let ended = net::shutdown(&stream, Shutdown::Both)
        .and_then(|()| net::sockopt::set_socket_passcred(&stream, true))
        .and_then(|()| look(&stream));
    match ended {
        Ok(flags) => !flags.contains(ReturnFlags::CTRUNC),
        // The peer hung up with unread messages. The kernel reports this only once.
        Err(Errno::CONNRESET) => {
            look(&stream).is_ok_and(|flags| !flags.contains(ReturnFlags::CTRUNC))
        }
        Err(_) => false,
    }
}

/// Peeks at the next message. [`ReturnFlags::CTRUNC`] means that it carries descriptors.
fn look(stream: impl AsFd) -> Result<ReturnFlags, Errno> {
    let mut no_control = RecvAncillaryBuffer::default();
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let message = net::recvmsg(&stream, &mut [], &mut no_control, flags)?;
    Ok(message.flags)
}

/// Waits until there is something to read or room to write. Fails with [`Errno::TIMEDOUT`] at
/// `deadline`.
pub fn wait_until(
    stream: BorrowedFd<'_>,
    what: PollFlags,
    deadline: Deadline,
) -> Result<(), Errno> {
    let deadline = interrupt::deadline(deadline);
    loop {
        let left = left(interrupt::step(deadline));
        let limit: Option<Timespec> = left.and_then(|left| left.try_into().ok());
        match poll(&mut [PollFd::new(&stream, what)], limit.as_ref()) {
            // A caller with a zero timeout only polls, so the interrupt function is not called.
            Ok(0) if left.is_some_and(|left| left.is_zero()) || deadline.is_over() => {
                return Err(Errno::TIMEDOUT);
            }
            Ok(0) | Err(Errno::INTR) => interrupt::check()?,
            Ok(_) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
