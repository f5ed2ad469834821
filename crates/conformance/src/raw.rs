//! Raw messages on the broker's sockets, as a hostile or broken process may send them.

use crate::failure::Failure;
use crate::harness::deadline;
use crate::tamper::at;
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
use std::time::Duration;

/// The bytes at the start of every message.
const MAGIC: [u8; 4] = *b"XHBR";
pub const VERSION: u16 = 9;
pub const ATTACH: u16 = 1;
pub const CHUNK: u16 = 2;
pub const MEMORY: u16 = 3;
pub const ARENA: u16 = 4;
pub const MIRROR: u16 = 5;
pub const DESCRIBE: u16 = 6;
/// Size of a request, in bytes.
pub const REQUEST: usize = 64;
/// Size of a reply, in bytes.
pub const REPLY: usize = 160;
/// Offset of the key in a request, in bytes.
pub const KEY_AT: usize = 24;
/// Offset of the serial number in a request, in bytes.
const SERIAL_AT: usize = 44;

/// The contents of a reply with status 0.
pub const ATTACHED: u32 = 1;
pub const SENT: u32 = 2;
pub const FETCHED: u32 = 3;
pub const PIECES: u32 = 4;
pub const DRIVER_HANDLE: u32 = 5;

pub const BAD_REQUEST: u16 = 1;
pub const OTHER_VERSION: u16 = 2;
pub const UNKNOWN_CONTEXT: u16 = 3;
pub const NOT_ADMITTED: u16 = 4;
pub const STALE: u16 = 5;
pub const READ_ONLY: u16 = 6;
pub const WRONG_KEY: u16 = 8;

/// The greatest owner number in a context.
const OWNERS: u64 = 4095;
/// Size of a catalog's first chunk, in bytes. It has a page, 64 bytes for each owner number
/// including 0, and a generation, a name and a sealed handle for each of 1,024 records.
pub const CATALOG: u64 = 4096 + 64 * (OWNERS + 1) + 1024 * (8 + 32 + 128);
/// The first bytes of a catalog.
pub const CATALOG_MAGIC: &[u8; 8] = b"XHCATLG3";
/// Offset of the first generation in a catalog's first chunk, in bytes.
const GENERATIONS: u64 = 4096 + 64 * (OWNERS + 1);
/// Size of a ledger's first chunk, in bytes. It has a page, and four bytes for each of 1,024
/// records.
pub const LEDGER: u64 = 4096 + 4 * 1024;
/// Size of a slot in an arena of events, in bytes.
pub const SLOT: u64 = 384;
/// Size of the first chunk's arena of events, in bytes, rounded up to whole pages. It has a slot
/// for each of 1,024 records, a doorbell of 8 words and a log of 1,024 words.
pub const EVENTS: u64 = (SLOT * 1024 + 8 * (8 + 1024)).next_multiple_of(4096);

/// A request. The default value is not a valid request.
#[derive(Clone, Copy, Default, Debug)]
pub struct Request {
    pub operation: u16,
    pub context: u32,
    pub record: u32,
    pub generation: u64,
    pub key: [u8; 16],
    /// 1 to request write access too.
    pub access: u32,
}

impl Request {
    /// Returns a request to attach to the context that made a handle.
    pub fn attach(handle: &[u8]) -> Self {
        Self {
            context: u32::from_le_bytes(part(handle, at::CONTEXT)),
            ..Self::about(ATTACH, handle)
        }
    }

    /// Returns a request about a handle's object.
    pub fn about(operation: u16, handle: &[u8]) -> Self {
        Self {
            operation,
            context: 0,
            record: u32::from_le_bytes(part(handle, at::RECORD)),
            generation: u64::from_le_bytes(part(handle, at::GENERATION)),
            key: part(handle, at::KEY),
            access: 0,
        }
    }

    /// Returns a request for a report.
    pub fn describe() -> Self {
        Self {
            operation: DESCRIBE,
            ..Self::default()
        }
    }

    /// Returns the same request for write access too.
    pub fn writing(self) -> Self {
        Self { access: 1, ..self }
    }

    /// Returns the message with the serial number 1.
    pub fn bytes(self) -> Vec<u8> {
        self.of_version(VERSION)
    }

    /// Returns the message for a version of the protocol.
    pub fn of_version(self, version: u16) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(version.to_le_bytes());
        bytes.extend(self.operation.to_le_bytes());
        bytes.extend(self.context.to_le_bytes());
        bytes.extend(self.record.to_le_bytes());
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(self.key);
        bytes.extend(self.access.to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
        bytes.resize(REQUEST, 0);
        bytes
    }
}

fn part<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    bytes[offset..offset + N].try_into().expect("inside")
}

/// Returns a reply with an empty backend blob. The arguments are the version, the status, the kind
/// of content, the number of the owner or segment, the serial number and the length.
pub fn reply(
    version: u16,
    status: u16,
    content: u32,
    number: u32,
    serial: u32,
    len: u64,
) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(status.to_le_bytes());
    for part in [content, number, serial, 0] {
        bytes.extend(part.to_le_bytes());
    }
    bytes.extend(len.to_le_bytes());
    bytes.resize(REPLY, 0);
    bytes
}

/// Returns the reply that attaches an importer as this owner.
pub fn attached(owner: u32, serial: u32) -> Vec<u8> {
    reply(VERSION, 0, ATTACHED, owner, serial, 0)
}

/// Returns a reply that contains only descriptors.
pub fn sent(serial: u32) -> Vec<u8> {
    reply(VERSION, 0, SENT, 0, serial, 0)
}

/// Returns a reply with a memory segment.
pub fn fetched(segment: u32, len: u64, serial: u32) -> Vec<u8> {
    reply(VERSION, 0, FETCHED, segment, serial, len)
}

/// Returns a reply with these bytes as a driver's handle to a segment, and without a descriptor.
pub fn driver_handle(segment: u32, len: u64, serial: u32, handle: &[u8]) -> Vec<u8> {
    let mut bytes = reply(VERSION, 0, DRIVER_HANDLE, segment, serial, len);
    bytes[20..24].copy_from_slice(&(handle.len() as u32).to_le_bytes());
    bytes[32..32 + handle.len()].copy_from_slice(handle);
    bytes
}

/// Returns a reply with some pieces of a segment of `len` bytes. It contains the total number of
/// pieces and the index of the first one here. For each piece it has the length of its memory, the
/// offset in it, and the length of the piece.
pub fn pieces(
    segment: u32,
    len: u64,
    serial: u32,
    (total, first): (u32, u32),
    parts: &[[u64; 3]],
) -> Vec<u8> {
    let mut bytes = reply(VERSION, 0, PIECES, segment, serial, len);
    bytes.extend(total.to_le_bytes());
    bytes.extend(first.to_le_bytes());
    for number in parts.iter().flatten() {
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

/// Returns the index of the first piece that a memory request asks for.
pub fn first_piece(request: &[u8]) -> u32 {
    let part = request.get(8..12).and_then(|part| part.try_into().ok());
    part.map_or(u32::MAX, u32::from_le_bytes)
}

/// Returns a reply that refuses the request.
pub fn refused(status: u16, serial: u32) -> Vec<u8> {
    reply(VERSION, status, 0, 0, serial, 0)
}

/// Returns a 16-bit field of a message.
pub fn field(message: &[u8], offset: usize) -> u16 {
    let part = message.get(offset..offset + 2);
    part.map_or(u16::MAX, |part| u16::from_le_bytes([part[0], part[1]]))
}

/// Returns the status of a reply.
pub fn status(reply: &[u8]) -> u16 {
    field(reply, 6)
}

/// Returns the operation of a request.
pub fn operation(request: &[u8]) -> u16 {
    field(request, 6)
}

/// Returns the number in a reply, which is that of the owner or of the segment.
pub fn number(reply: &[u8]) -> u32 {
    let part = reply.get(12..16).and_then(|part| part.try_into().ok());
    part.map_or(u32::MAX, u32::from_le_bytes)
}

/// Returns the serial number of a request, which its reply repeats.
pub fn serial(request: &[u8]) -> u32 {
    let part = request.get(SERIAL_AT..SERIAL_AT + 4);
    part.and_then(|part| part.try_into().ok())
        .map_or(0, u32::from_le_bytes)
}

/// Returns a catalog's first chunk in which the object of a handle is current.
pub fn catalog(handle: &[u8]) -> rustix::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, CATALOG)?;
    rustix::io::pwrite(&file, CATALOG_MAGIC, 0)?;
    let record = u32::from_le_bytes(part(handle, at::RECORD));
    let generation: [u8; 8] = part(handle, at::GENERATION);
    rustix::io::pwrite(&file, &generation, GENERATIONS + 8 * u64::from(record))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | SealFlags::FUTURE_WRITE;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

/// A socket of the broker's protocol.
pub struct Socket(pub(crate) OwnedFd);

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

    /// Accepts the next connection. Returns `None` if none arrives before the deadline.
    pub fn accept(&self) -> rustix::io::Result<Option<Self>> {
        self.accept_within(deadline())
    }

    /// Accepts the next connection. Returns `None` if none arrives within `limit`.
    pub fn accept_within(&self, limit: Duration) -> rustix::io::Result<Option<Self>> {
        if !self.is_ready(limit)? {
            return Ok(None);
        }
        net::accept_with(&self.0, SocketFlags::CLOEXEC)
            .map(Self)
            .map(Some)
    }

    pub fn is_ready(&self, limit: Duration) -> rustix::io::Result<bool> {
        let limit = limit.try_into().ok();
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

    /// Receives the next message and its descriptors. Returns no bytes after a hang-up, and an
    /// error if no message arrives before the deadline.
    pub fn receive(&self) -> rustix::io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        if !self.is_ready(deadline())? {
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

/// Returns a memfd of this length. It has the seals that importers require if `sealed` is true, and
/// no seals otherwise.
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

/// Borrows descriptors for sending.
pub fn borrowed(descriptors: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    descriptors.iter().map(AsFd::as_fd).collect()
}
