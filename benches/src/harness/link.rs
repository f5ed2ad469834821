//! A two-way channel between two processes, for messages and descriptors.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};

/// Maximum length of a link's message, in bytes.
///
/// A full message must fit into a socket's default send buffer of 208 KiB. The handles of 1,000
/// objects must fit into one message.
const MESSAGE_MAX_BYTES: usize = 128 * 1024;

/// Maximum number of descriptors in one message. The kernel allows 253, and no scenario sends more
/// than 64.
const DESCRIPTORS_MAX: usize = 64;

/// The error of a link whose other process has ended.
#[derive(Debug)]
pub(crate) struct HungUp;

impl fmt::Display for HungUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the process at the other end has ended")
    }
}

impl std::error::Error for HungUp {}

/// One end of a sequenced-packet socket: each `send` is received by one `receive`.
pub(crate) struct Link {
    socket: OwnedFd,
    /// Space for the next message. The link keeps the buffer, so receiving makes no large
    /// allocation that a scenario would count.
    buffer: Mutex<Vec<u8>>,
}

pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Message {
    /// Returns the message's only descriptor.
    pub(crate) fn descriptor(mut self) -> Result<OwnedFd> {
        self.descriptors.pop().context("expected a descriptor")
    }
}

impl Link {
    pub(crate) fn pair() -> Result<(Self, Self)> {
        let (a, b) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .context("cannot create a socket pair")?;
        Ok((Self::from(a), Self::from(b)))
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> Result<()> {
        self.send_with(bytes, &[])
    }

    pub(crate) fn send_with(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        // A receiver could not tell an empty message from a hang-up.
        ensure!(!bytes.is_empty(), "a message has at least one byte");
        ensure!(
            bytes.len() <= MESSAGE_MAX_BYTES,
            "a message has at most {MESSAGE_MAX_BYTES} bytes"
        );
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ensure!(
                control.push(SendAncillaryMessage::ScmRights(descriptors)),
                "a message carries at most {DESCRIPTORS_MAX} descriptors"
            );
        }
        let sent = retry_on_intr(|| {
            sendmsg(
                &self.socket,
                &[IoSlice::new(bytes)],
                &mut control,
                SendFlags::NOSIGNAL,
            )
        });
        match sent {
            Ok(_) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(HungUp.into()),
            Err(error) => Err(error).context("cannot send a message"),
        }
    }

    /// Waits for the next message. There is no deadline: the parent process kills a late child
    /// process.
    pub(crate) fn receive(&self) -> Result<Message> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = match retry_on_intr(|| {
            recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut buffer)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            )
        }) {
            Ok(received) => received,
            Err(Errno::CONNRESET) => return Err(HungUp.into()),
            Err(error) => return Err(error).context("cannot receive a message"),
        };
        if received
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        {
            bail!("a message was cut: too long, or no room for its descriptors");
        }
        if received.bytes == 0 {
            return Err(HungUp.into());
        }
        let bytes = buffer[..received.bytes].to_vec();
        let descriptors = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(rights) => Some(rights),
                _ => None,
            })
            .flatten()
            .collect();
        Ok(Message { bytes, descriptors })
    }

    /// Waits for a message of exactly `N` bytes.
    pub(crate) fn receive_array<const N: usize>(&self) -> Result<[u8; N]> {
        let message = self.receive()?;
        let found = message.bytes.len();
        message
            .bytes
            .try_into()
            .map_err(|_| anyhow::anyhow!("expected a message of {N} bytes, not {found}"))
    }

    pub(crate) fn send_number(&self, number: u64) -> Result<()> {
        self.send(&number.to_le_bytes())
    }

    pub(crate) fn receive_number(&self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.receive_array()?))
    }

    /// Waits until the other process sends this number. Any other number is an error.
    pub(crate) fn await_number(&self, expected: u64) -> Result<()> {
        let found = self.receive_number()?;
        ensure!(found == expected, "expected {expected}, not {found}");
        Ok(())
    }
}

impl From<OwnedFd> for Link {
    fn from(socket: OwnedFd) -> Self {
        Self {
            socket,
            buffer: Mutex::new(vec![0; MESSAGE_MAX_BYTES]),
        }
    }
}

impl From<Link> for OwnedFd {
    fn from(link: Link) -> Self {
        link.socket
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
