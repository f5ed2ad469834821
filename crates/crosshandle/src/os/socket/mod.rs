//! Unix sockets that keep message boundaries and carry descriptors with a message.
//!
//! A descriptor that a stranger sends is a danger already when it is closed: the last close of a
//! TCP socket with `SO_LINGER`, of a file in FUSE or of a device that hangs blocks the thread that
//! makes it, for as long as the stranger likes. It makes no difference whether that thread wanted
//! the descriptor: a receive without room for it closes it, and so does closing a socket in whose
//! queue it lies. Hence:
//!
//! - Who expects no descriptor lets the kernel refuse them ([`Guard::Kernel`]), or looks at each
//!   message before it takes it ([`Guard::Look`]).
//! - Who expects some looks first, which gives duplicates while the queue keeps its own, and only
//!   then takes the message: so none of these closes is the last one. What becomes of the
//!   duplicates is up to their type, the `D` of [`receive_until`].
//! - A socket whose queue may not be empty ([`end`]) is not closed on a thread that others need.

pub(crate) mod interrupt;
mod messages;
#[cfg(test)]
mod tests;

pub(crate) use messages::{
    FEW_DESCRIPTORS, Granted, MAX_DESCRIPTORS, Pending, Received, drop_message, has_unread,
    pending, receive, receive_until, send,
};

use super::lock::last_error;
use super::tuning::MAX_SOCKET_TIMEOUT;
use crate::sync::Deadline;
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

fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | SocketFlags::CLOEXEC;
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Makes two sockets that are connected with each other.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC;
    net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Who keeps descriptors away from a socket that expects none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Guard {
    /// The kernel, which refuses to send them there (Linux 6.16).
    Kernel,
    /// The receiver, which looks at every message before it takes it.
    Look,
}

/// Refuses descriptors at a socket from now on, and at the connections that it accepts. What is in
/// its queue already stays there.
pub(crate) fn refuse_descriptors(socket: impl AsFd) -> Guard {
    match forbid_descriptors(socket.as_fd()) {
        Ok(()) => Guard::Kernel,
        Err(_) => Guard::Look,
    }
}

fn forbid_descriptors(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    /// Of Linux 6.16, on all machines that this crate is made for; the C library has no name for it.
    const SO_PASSRIGHTS: libc::c_int = 83;
    let value: libc::c_int = 0;
    // SAFETY: the descriptor is open for the call, and the kernel reads one int at the address.
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
pub(crate) fn listen(path: &Path) -> Result<(OwnedFd, Guard), Errno> {
    let listener = socket(SocketFlags::NONBLOCK)?;
    // Before there can be a connection.
    let guard = refuse_descriptors(&listener);
    net::bind(&listener, &SocketAddrUnix::new(path)?)?;
    net::listen(&listener, 128)?;
    Ok((listener, guard))
}

/// Takes the next connection, if there is one. It has its listener's [`Guard`].
pub(crate) fn accept(listener: impl AsFd) -> Result<OwnedFd, Errno> {
    net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Connects to the socket at `path`. Waits until `deadline` for room in its queue
/// ([`Errno::TIMEDOUT`]).
pub(crate) fn connect(path: &Path, deadline: Deadline) -> Result<OwnedFd, Errno> {
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
            // Zero is not a timeout.
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

/// Returns the time until `deadline`, as far as the kernel can count it.
fn left(deadline: Deadline) -> Option<Duration> {
    let left = deadline.remaining()?;
    Some(left.min(MAX_SOCKET_TIMEOUT))
}

/// Tries to connect to the socket at `path`, without waiting for room in its queue
/// ([`Errno::AGAIN`]), and hangs up. [`Errno::CONNREFUSED`]: no process listens there.
pub(crate) fn try_connect(path: &Path) -> Result<(), Errno> {
    let stream = socket(SocketFlags::NONBLOCK)?;
    net::connect(&stream, &SocketAddrUnix::new(path)?)
}

/// The process at the other end of a socket when it was connected.
pub(crate) struct Peer {
    /// Its effective user, as this process's user namespace shows it.
    pub(crate) uid: u32,
    /// Its number in this process's PID namespace; 0 if it has none there.
    pub(crate) pid: u32,
    /// Whether it is this very process.
    pub(crate) is_self: bool,
}

/// Returns the process at the other end.
pub(crate) fn peer(stream: impl AsFd) -> Result<Peer, Errno> {
    // Not with rustix, which takes the process number 0 for an error: that is what the kernel
    // gives for a process in a PID namespace that cannot be seen from this one.
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open for the call, and the kernel writes at most `len` bytes to
    // `peer`, any of which are valid there.
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

/// Ends a connection, in copies of its descriptor too.
pub(crate) fn hang_up(stream: impl AsFd) {
    // It fails only if the connection has ended.
    let _ = net::shutdown(&stream, Shutdown::Both);
}

/// Ends a connection, in copies of its descriptor too, and returns whether closing it is harmless:
/// whether its queue is empty, to which nothing comes any more.
pub(crate) fn end(stream: impl AsFd) -> bool {
    // The end of a connection reads like an empty message. But a message comes with its sender's
    // credentials for who asks for them, also if there is no room for those.
    let ended = net::shutdown(&stream, Shutdown::Both)
        .and_then(|()| net::sockopt::set_socket_passcred(&stream, true))
        .and_then(|()| look(&stream));
    match ended {
        Ok(flags) => !flags.contains(ReturnFlags::CTRUNC),
        // The peer has hung up without having read all, which is told once.
        Err(Errno::CONNRESET) => {
            look(&stream).is_ok_and(|flags| !flags.contains(ReturnFlags::CTRUNC))
        }
        Err(_) => false,
    }
}

/// Looks at the next message without taking it. [`ReturnFlags::CTRUNC`]: it carries descriptors.
fn look(stream: impl AsFd) -> Result<ReturnFlags, Errno> {
    let mut no_control = RecvAncillaryBuffer::default();
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let message = net::recvmsg(&stream, &mut [], &mut no_control, flags)?;
    Ok(message.flags)
}

/// Waits until there is something to read or room to write, until `deadline` at most
/// ([`Errno::TIMEDOUT`]).
pub(crate) fn wait_until(
    stream: BorrowedFd<'_>,
    what: PollFlags,
    deadline: Deadline,
) -> Result<(), Errno> {
    let deadline = interrupt::deadline(deadline);
    loop {
        let left = left(interrupt::step(deadline));
        let limit: Option<Timespec> = left.and_then(|left| left.try_into().ok());
        match poll(&mut [PollFd::new(&stream, what)], limit.as_ref()) {
            // Whoever only looks is not asked.
            Ok(0) if left.is_some_and(|left| left.is_zero()) || deadline.is_over() => {
                return Err(Errno::TIMEDOUT);
            }
            Ok(0) | Err(Errno::INTR) => interrupt::check()?,
            Ok(_) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
