//! Connections to brokers. The attackers never block on them.

use super::{Report, Stop, Victim};
use crate::pattern::Random;
use crate::tamper::at;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::IoSlice;
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum number of descriptors that the kernel sends with one message.
pub(super) const MAX_DESCRIPTORS: usize = 253;

pub(super) fn sockets(victim: &Victim) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(&victim.directory).into_iter().flatten();
    let sockets = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    sockets.map(|entry| entry.path()).collect()
}

pub(super) fn path_of(victim: &Victim, handle: &[u8]) -> PathBuf {
    let exporter = handle[at::EXPORTER..at::EXPORTER + 8].try_into();
    let exporter = u64::from_le_bytes(exporter.expect("eight bytes"));
    victim.directory.join(format!("{exporter:016x}.sock"))
}

pub(super) fn connect(victim: &Victim, random: &mut Random) -> rustix::io::Result<OwnedFd> {
    let paths = sockets(victim);
    let index = random.below(paths.len().max(1));
    let path = paths.get(index).ok_or(rustix::io::Errno::NOENT)?;
    connect_to(path)
}

pub(super) fn connect_to(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Sends a message with descriptors. Fails if the queue is full.
pub(super) fn send(
    socket: &OwnedFd,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    net::sendmsg(socket, &[IoSlice::new(message)], &mut control, flags).map(drop)
}

/// Keeps up to `most` connections until the attack must stop. `open` makes a connection, and each
/// call is one attempt. `use_all` uses all connections in each round. A pause follows, and then
/// connections that the victims have closed are replaced.
pub(super) fn keep_open(
    stop: &Stop,
    most: usize,
    pause: Duration,
    mut open: impl FnMut() -> rustix::io::Result<OwnedFd>,
    mut use_all: impl FnMut(&mut Vec<OwnedFd>, &mut Report),
) -> Report {
    let (mut kept, mut report) = (Vec::new(), Report::default());
    loop {
        while kept.len() < most && !stop.is_stopped() {
            report.attempts += 1;
            match open() {
                Ok(connection) => kept.push(connection),
                // The victim's queue is full, or the victim has ended.
                Err(_) => break,
            }
        }
        use_all(&mut kept, &mut report);
        stop.begun();
        if stop.pause(pause) {
            return report;
        }
        retain_open(&mut kept);
    }
}

/// Drops the connections that the victims have closed.
pub(super) fn retain_open(connections: &mut Vec<OwnedFd>) {
    let mut ready: Vec<_> = connections
        .iter()
        .map(|connection| PollFd::new(connection, PollFlags::empty()))
        .collect();
    let at_once = Timespec::default();
    if poll(&mut ready, Some(&at_once)).unwrap_or(0) == 0 {
        return;
    }
    let mut open = ready
        .iter()
        .map(|ready| !ready.revents().contains(PollFlags::HUP))
        .collect::<Vec<_>>()
        .into_iter();
    connections.retain(|_| open.next().unwrap_or(true));
}
