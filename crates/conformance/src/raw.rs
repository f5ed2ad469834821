//! Hand-made messages on the broker's sockets, as a hostile or broken process may send them.

use crate::failure::Failure;
use crate::harness::deadline;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Bytes at the start of every message.
const MAGIC: [u8; 4] = *b"XHBR";
pub const VERSION: u16 = 4;
pub const ATTACH: u16 = 1;
pub const FETCH: u16 = 2;
/// Size of a request in bytes.
pub const REQUEST: usize = 40;
/// Size of a reply in bytes.
pub const REPLY: usize = 160;

/// Returns a request: magic, version, operation, secret, record, generation, access, serial number.
pub fn request(version: u16, operation: u16, secret: [u8; 16], rest: [u32; 4]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(operation.to_le_bytes());
    bytes.extend(secret);
    rest.iter()
        .for_each(|part| bytes.extend(part.to_le_bytes()));
    bytes
}

/// Returns a reply: magic, version, status, number (of the owner or of the segment), serial number,
/// length, and an empty backend blob.
pub fn reply(version: u16, status: u16, number: u32, serial: u32, len: u64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(status.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend(serial.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes.resize(REPLY, 0);
    bytes
}

/// Returns a 16-bit field of a message.
pub fn field(message: &[u8], offset: usize) -> u16 {
    let part = message.get(offset..offset + 2);
    part.map_or(u16::MAX, |part| u16::from_le_bytes([part[0], part[1]]))
}

/// Returns the serial number of a request, which its reply repeats.
pub fn serial(request: &[u8]) -> u32 {
    let part = request.get(REQUEST - 4..REQUEST);
    part.and_then(|part| part.try_into().ok())
        .map_or(0, u32::from_le_bytes)
}

/// A socket of the broker's protocol.
pub struct Socket(OwnedFd);

impl Socket {
    fn new() -> rustix::io::Result<Self> {
        net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map(Self)
    }

    /// Connects to the only socket in a directory.
    pub fn connect_in(directory: &Path) -> Result<Self, Failure> {
        let path = only_socket(directory)?;
        Ok(Self::connect(&path)?)
    }

    pub fn connect(path: &Path) -> rustix::io::Result<Self> {
        let socket = Self::new()?;
        net::connect(&socket.0, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    }

    pub fn listen(path: &Path) -> rustix::io::Result<Self> {
        let socket = Self::new()?;
        net::bind(&socket.0, &SocketAddrUnix::new(path)?)?;
        net::listen(&socket.0, 16)?;
        Ok(socket)
    }

    /// Accepts the next connection; `None` if none comes in time.
    pub fn accept(&self) -> rustix::io::Result<Option<Self>> {
        if !self.is_ready()? {
            return Ok(None);
        }
        net::accept_with(&self.0, SocketFlags::CLOEXEC)
            .map(Self)
            .map(Some)
    }

    fn is_ready(&self) -> rustix::io::Result<bool> {
        let limit = deadline().try_into().ok();
        let mut ready = [PollFd::new(&self.0, PollFlags::IN)];
        Ok(poll(&mut ready, limit.as_ref())? > 0)
    }

    /// Sends a message with descriptors, without waiting for buffer space.
    pub fn send(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        net::sendmsg(&self.0, &[IoSlice::new(message)], &mut control, flags).map(drop)
    }

    /// Receives the next message and its descriptors: no bytes at a hang-up, an error if none comes
    /// in time.
    pub fn receive(&self) -> rustix::io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        if !self.is_ready()? {
            return Err(rustix::io::Errno::TIMEDOUT);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = vec![0; 256];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            net::recvmsg(&self.0, &mut parts, &mut control, flags)?
        };
        bytes.truncate(received.bytes);
        let descriptors = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(rights) => Some(rights),
                _ => None,
            })
            .flatten()
            .collect();
        Ok((bytes, descriptors))
    }

    /// Returns whether the other end has hung up.
    pub fn is_hung_up(&self) -> bool {
        matches!(self.receive(), Ok((bytes, _)) if bytes.is_empty())
            || matches!(self.receive(), Err(rustix::io::Errno::CONNRESET))
    }
}

/// Returns the path of the only socket in a directory.
pub fn only_socket(directory: &Path) -> Result<PathBuf, Failure> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        paths.push(entry?.path());
    }
    match paths.as_slice() {
        [path] => Ok(path.clone()),
        _ => Err(Failure::new(format!("{paths:?} should be one socket"))),
    }
}

/// Returns a memfd of a length, sealed as the broker demands or not at all.
pub fn memfd(len: u64, sealed: bool) -> rustix::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, len)?;
    if sealed {
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    }
    Ok(file)
}

/// Returns the read end of a pipe.
pub fn pipe() -> rustix::io::Result<OwnedFd> {
    Ok(rustix::pipe::pipe()?.0)
}

/// Borrows descriptors to send them.
pub fn borrowed(descriptors: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    descriptors.iter().map(AsFd::as_fd).collect()
}
