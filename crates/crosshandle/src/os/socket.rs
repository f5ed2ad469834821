//! Unix sockets that keep message boundaries and carry a descriptor with a message.

use super::tuning::MAX_SOCKET_TIMEOUT;
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::time::{Duration, Instant};

fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | SocketFlags::CLOEXEC;
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Makes two sockets that are connected with each other.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC;
    net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Listens at `path`, which must not exist.
pub(crate) fn listen(path: &Path) -> Result<OwnedFd, Errno> {
    let listener = socket(SocketFlags::NONBLOCK)?;
    net::bind(&listener, &SocketAddrUnix::new(path)?)?;
    net::listen(&listener, 128)?;
    Ok(listener)
}

/// Takes the next connection, if there is one.
pub(crate) fn accept(listener: impl AsFd) -> Result<OwnedFd, Errno> {
    net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Connects to the socket at `path`. Waits for at most `timeout` for room in its queue, and as
/// long in every [`receive_within`].
pub(crate) fn connect(path: &Path, timeout: Duration) -> Result<OwnedFd, Errno> {
    let stream = socket(SocketFlags::empty())?;
    // None means for ever, and zero is not a timeout.
    let limit = Some(timeout.clamp(Duration::from_micros(1), MAX_SOCKET_TIMEOUT));
    net::sockopt::set_socket_timeout(&stream, net::sockopt::Timeout::Send, limit)?;
    net::sockopt::set_socket_timeout(&stream, net::sockopt::Timeout::Recv, limit)?;
    let address = SocketAddrUnix::new(path)?;
    let end = Instant::now().checked_add(MAX_SOCKET_TIMEOUT.min(timeout));
    loop {
        match net::connect(&stream, &address) {
            Err(Errno::AGAIN) => return Err(Errno::TIMEDOUT),
            Err(Errno::INTR) if end.is_none_or(|end| Instant::now() < end) => {}
            Err(Errno::INTR) => return Err(Errno::TIMEDOUT),
            Err(error) => return Err(error),
            Ok(()) => return Ok(stream),
        }
    }
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
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    let own = rustix::process::getpid().as_raw_nonzero().get();
    Ok(Peer {
        uid: peer.uid,
        pid: peer.pid.try_into().unwrap_or(0),
        is_self: peer.pid == own,
    })
}

/// Sends one message, with up to two descriptors. Never blocks.
pub(crate) fn send(
    stream: impl AsFd,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::NOBUFS);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match net::sendmsg(&stream, &[IoSlice::new(message)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
            Ok(sent) if sent == message.len() => return Ok(()),
            Ok(_) => return Err(Errno::MSGSIZE),
        }
    }
}

/// A message, or the end of the connection.
pub(crate) enum Received {
    /// A message of this length, and the descriptors that came with it.
    Message(usize, Vec<OwnedFd>),
    /// The other end has hung up.
    HungUp,
}

/// Takes one message into `buffer`. Never blocks ([`Errno::AGAIN`]: there is none yet). A message
/// longer than the buffer or with more than two descriptors is [`Errno::MSGSIZE`]; a descriptor
/// that this process has no room for is [`Errno::MFILE`].
pub(crate) fn receive(stream: impl AsFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    receive_with(stream, buffer, flags)
}

fn receive_with(stream: impl AsFd, buffer: &mut [u8], flags: RecvFlags) -> Result<Received, Errno> {
    // Room for three, to see that a stranger sent more than two; all are closed in that case.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut *buffer)];
    let message = net::recvmsg(&stream, &mut parts, &mut control, flags)?;
    let descriptors: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        })
        .flatten()
        .collect();
    if message.flags.contains(ReturnFlags::TRUNC) || descriptors.len() > 2 {
        return Err(Errno::MSGSIZE);
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MFILE);
    }
    if message.bytes == 0 && descriptors.is_empty() {
        return Ok(Received::HungUp);
    }
    Ok(Received::Message(message.bytes, descriptors))
}

/// Takes one message like [`receive`], but waits for it as long as [`connect`] was told, or for ever
/// on a socket of [`pair`]. A signal interrupts it ([`Errno::INTR`]), so that the caller can look at the clock.
pub(crate) fn receive_within(stream: impl AsFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    match receive_with(stream, buffer, RecvFlags::CMSG_CLOEXEC) {
        Err(Errno::AGAIN) => Err(Errno::TIMEDOUT),
        result => result,
    }
}
