//! Unix sockets that keep message boundaries and carry a descriptor with a message.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

fn socket() -> Result<OwnedFd, Errno> {
    net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

/// Listens at `path`, which must not exist.
pub(crate) fn listen(path: &Path) -> Result<OwnedFd, Errno> {
    let listener = socket()?;
    net::bind(&listener, &SocketAddrUnix::new(path)?)?;
    net::listen(&listener, 128)?;
    Ok(listener)
}

/// Takes the next connection, if there is one.
pub(crate) fn accept(listener: impl AsFd) -> Result<OwnedFd, Errno> {
    net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Connects to the socket at `path`; a full queue there is waited for until `deadline`.
pub(crate) fn connect(path: &Path, deadline: Instant) -> Result<OwnedFd, Errno> {
    let stream = socket()?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        match net::connect(&stream, &address) {
            // A Unix socket cannot be polled for room in the listener's queue.
            Err(Errno::AGAIN) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(Errno::AGAIN) => return Err(Errno::TIMEDOUT),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
            Ok(()) => return Ok(stream),
        }
    }
}

/// The user at the other end, and whether the other end is this very process.
pub(crate) fn peer(stream: impl AsFd) -> Result<(u32, bool), Errno> {
    let peer = net::sockopt::socket_peercred(stream)?;
    Ok((peer.uid.as_raw(), peer.pid == rustix::process::getpid()))
}

/// Sends one message, with a descriptor if there is one. Never blocks.
pub(crate) fn send(
    stream: impl AsFd,
    message: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptor.into_iter().collect();
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
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

/// What [`receive`] found.
pub(crate) enum Received {
    /// A message of this length, and the descriptor that came with it.
    Message(usize, Option<OwnedFd>),
    /// The other end has hung up.
    HungUp,
}

/// Takes one message into `buffer`. Never blocks ([`Errno::AGAIN`]: there is none yet). A message
/// longer than the buffer or with more than one descriptor is [`Errno::MSGSIZE`]; a descriptor
/// that this process has no room for is [`Errno::MFILE`].
pub(crate) fn receive(stream: impl AsFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    // Room for two, to see that a stranger sent more than one; all are closed in that case.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = loop {
        let mut parts = [IoSliceMut::new(&mut *buffer)];
        match net::recvmsg(&stream, &mut parts, &mut control, flags) {
            Err(Errno::INTR) => {}
            result => break result?,
        }
    };
    let mut descriptors: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        })
        .flatten()
        .collect();
    if message.flags.contains(ReturnFlags::TRUNC) || descriptors.len() > 1 {
        return Err(Errno::MSGSIZE);
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MFILE);
    }
    if message.bytes == 0 && descriptors.is_empty() {
        return Ok(Received::HungUp);
    }
    Ok(Received::Message(message.bytes, descriptors.pop()))
}

/// Waits until there is something to [`receive`].
pub(crate) fn wait_readable(stream: impl AsFd, deadline: Instant) -> Result<(), Errno> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Errno::TIMEDOUT);
        }
        let timeout = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        match poll(&mut [PollFd::new(&stream, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
