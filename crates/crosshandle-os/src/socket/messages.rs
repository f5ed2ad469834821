//! Messages with and without descriptors.

use super::{Guard, look, wait_until};
use crate::lock::last_error;
use crosshandle_types::sync::Deadline;
use rustix::event::PollFlags;
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use smallvec::SmallVec;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;

/// Number of descriptors of a usual message, for which no heap memory is needed.
pub const FEW_DESCRIPTORS: usize = 2;
/// Maximum number of descriptors in one message. It is far below the kernel's limit (253), so that
/// a process with few free descriptors has room for them, and only few are in transit at a time.
pub const MAX_DESCRIPTORS: usize = 64;

/// Sends one message with at most [`MAX_DESCRIPTORS`] descriptors. Never blocks.
pub fn send(
    stream: impl AsFd,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
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

/// Sends one message as [`send`] does, and waits for room in the peer's queue. Fails with
/// [`Errno::TIMEDOUT`] at `deadline`.
pub fn send_until(
    stream: impl AsFd,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
    deadline: Deadline,
) -> Result<(), Errno> {
    loop {
        match send(&stream, message, descriptors) {
            Err(Errno::AGAIN) => wait_until(stream.as_fd(), PollFlags::OUT, deadline)?,
            result => return result,
        }
    }
}

/// Returns how much of this process's memory the sent messages take that the peer has not read yet,
/// in bytes.
pub fn unread_bytes(stream: impl AsFd) -> Result<usize, Errno> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open during the call, and the kernel writes one int at the address.
    let result = unsafe {
        libc::ioctl(
            stream.as_fd().as_raw_fd(),
            libc::TIOCOUTQ,
            ptr::from_mut(&mut bytes),
        )
    };
    match result {
        -1 => Err(last_error()),
        _ => Ok(usize::try_from(bytes).unwrap_or(0)),
    }
}

/// Returns whether the peer has not yet read all sent messages.
pub fn has_unread(stream: impl AsFd) -> Result<bool, Errno> {
    Ok(unread_bytes(stream)? > 0)
}

/// The result of a receive. `D` is the type of the descriptors.
#[derive(Debug)]
pub enum Received<D> {
    /// A message of this length in bytes, with its descriptors.
    Message(usize, D),
    /// A message with unwanted descriptors. It is still in the queue, so closing the socket may
    /// block.
    Unwanted,
    /// The peer has hung up.
    HungUp,
}

/// The next thing to receive from a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pending {
    /// No message has arrived, and the connection has not ended.
    Nothing,
    /// A message, or an error.
    Message,
    /// The end of the connection. An empty message looks the same.
    HangUp,
}

/// The descriptors of a message.
pub type Granted<D> = SmallVec<[D; FEW_DESCRIPTORS]>;

/// Receives one message without descriptors into `buffer`, from a peer that must send none. Never
/// blocks, and fails with [`Errno::AGAIN`] if there is no message. A message that is longer than
/// the buffer fails with [`Errno::MSGSIZE`].
pub fn receive(stream: impl AsFd, buffer: &mut [u8], guard: Guard) -> Result<Received<()>, Errno> {
    if guard == Guard::Look && look(&stream)?.contains(ReturnFlags::CTRUNC) {
        return Ok(Received::Unwanted);
    }
    let mut parts = [IoSliceMut::new(buffer)];
    let mut no_control = RecvAncillaryBuffer::default();
    let message = net::recvmsg(&stream, &mut parts, &mut no_control, RecvFlags::DONTWAIT)?;
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::MSGSIZE);
    }
    Ok(match message.bytes {
        0 => Received::HungUp,
        len => Received::Message(len, ()),
    })
}

/// Receives one message into `buffer`, with at most `most` descriptors, and never more than
/// [`MAX_DESCRIPTORS`]. Waits until `deadline` and then fails with [`Errno::TIMEDOUT`]. Signals do
/// not prolong the wait.
///
/// Two errors leave the message in the queue. [`Errno::MSGSIZE`] means that the message is longer
/// than the buffer. [`Errno::MFILE`] means that this process has no room for its descriptors. Only
/// one thread may receive at a time.
pub fn receive_until<D: From<OwnedFd>>(
    stream: impl AsFd,
    buffer: &mut [u8],
    most: usize,
    deadline: Deadline,
) -> Result<Received<Granted<D>>, Errno> {
    loop {
        // Often the message is there already, and then there is no need to wait.
        match receive_now(stream.as_fd(), buffer, most) {
            Err(Errno::AGAIN | Errno::INTR) if deadline.is_over() => return Err(Errno::TIMEDOUT),
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
        wait_until(stream.as_fd(), PollFlags::IN, deadline)?;
    }
}

/// Aligned room for descriptors. [`control_bytes`] of it are used. The alignment ensures that
/// none of it is lost, and there is no slack as in rustix's macro.
#[repr(C, align(8))]
struct ControlSpace([MaybeUninit<u8>; control_bytes(MAX_DESCRIPTORS)]);

/// Returns the number of bytes that hold exactly this many descriptors.
const fn control_bytes(descriptors: usize) -> usize {
    size_of::<libc::cmsghdr>() + descriptors * size_of::<RawFd>()
}

fn receive_now<D: From<OwnedFd>>(
    stream: BorrowedFd<'_>,
    buffer: &mut [u8],
    most: usize,
) -> Result<Received<Granted<D>>, Errno> {
    let most = most.min(MAX_DESCRIPTORS);
    let mut space = ControlSpace([MaybeUninit::uninit(); control_bytes(MAX_DESCRIPTORS)]);
    let mut control = RecvAncillaryBuffer::new(&mut space.0[..control_bytes(most)]);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = net::recvmsg(stream, &mut parts, &mut control, flags)?;
    let granted: Granted<D> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        })
        .flatten()
        .map(D::from)
        .collect();
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return match granted.len() < most {
            true => Err(Errno::MFILE),
            false => Ok(Received::Unwanted),
        };
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::MSGSIZE);
    }
    // This removes the message from the queue. Its references to the descriptors are not the last
    // ones.
    drop_message(stream)?;
    if message.bytes == 0 && granted.is_empty() {
        return Ok(Received::HungUp);
    }
    Ok(Received::Message(message.bytes, granted))
}

/// Removes one message of a trusted peer from the queue, and closes its descriptors.
pub fn drop_message(stream: impl AsFd) -> Result<(), Errno> {
    let mut no_control = RecvAncillaryBuffer::default();
    net::recvmsg(&stream, &mut [], &mut no_control, RecvFlags::DONTWAIT).map(drop)
}

/// Returns the next thing to receive from a connection without descriptors, without taking it.
pub fn pending(stream: impl AsFd) -> Pending {
    let mut no_control = RecvAncillaryBuffer::default();
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    match net::recvmsg(&stream, &mut parts, &mut no_control, flags) {
        Err(Errno::AGAIN) => Pending::Nothing,
        Ok(message) if message.bytes == 0 && message.flags.is_empty() => Pending::HangUp,
        // The receive reports an error again.
        Ok(_) | Err(_) => Pending::Message,
    }
}
