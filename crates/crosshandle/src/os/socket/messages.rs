//! Messages, with descriptors and without.

use super::{Guard, look, wait_until};
use crate::os::is_planted;
use crate::os::lock::last_error;
use crate::os::tuning::MAX_SOCKET_TIMEOUT;
use crate::sync::Deadline;
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

/// Descriptors that come with a message that is not one of many.
pub(crate) const FEW_DESCRIPTORS: usize = 2;
/// The most descriptors that come with one message. Far fewer than the kernel takes (253), so that a process
/// with few descriptors has room for them, and only few are under way at a time.
pub(crate) const MAX_DESCRIPTORS: usize = 64;

/// Sends one message, with at most [`MAX_DESCRIPTORS`] descriptors. Never blocks.
pub(crate) fn send(
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

/// Returns whether messages that were sent lie unread at the other end.
pub(crate) fn has_unread(stream: impl AsFd) -> Result<bool, Errno> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open for the call, and the kernel writes one int at the address.
    let result = unsafe {
        libc::ioctl(
            stream.as_fd().as_raw_fd(),
            libc::TIOCOUTQ,
            ptr::from_mut(&mut bytes),
        )
    };
    match result {
        -1 => Err(last_error()),
        _ => Ok(bytes > 0),
    }
}

/// A message, or why there is none. `D`: the descriptors that came with it.
#[derive(Debug)]
pub(crate) enum Received<D> {
    /// A message of this length.
    Message(usize, D),
    /// A message with descriptors that are not wanted. It is in the queue still, so closing the
    /// socket may block.
    Unwanted,
    /// The other end has hung up.
    HungUp,
}

/// What there is to be taken from a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pending {
    /// Nothing yet.
    Nothing,
    /// A message, or an error.
    Message,
    /// The end. An empty message looks the same.
    HangUp,
}

/// The descriptors that came with a message.
pub(crate) type Granted<D> = SmallVec<[D; FEW_DESCRIPTORS]>;

/// Takes one message without descriptors into `buffer`, from a peer that is to send none. Never
/// blocks ([`Errno::AGAIN`]: there is none yet). A message longer than the buffer is
/// [`Errno::MSGSIZE`].
pub(crate) fn receive(
    stream: impl AsFd,
    buffer: &mut [u8],
    guard: Guard,
) -> Result<Received<()>, Errno> {
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

/// Takes one message into `buffer`, with at most `most` descriptors, which are at most
/// [`MAX_DESCRIPTORS`]. Waits for it until `deadline` ([`Errno::TIMEDOUT`]); signals don't
/// prolong that.
///
/// Two errors leave the message in the queue: [`Errno::MSGSIZE`], it is longer than the buffer, and
/// [`Errno::MFILE`], this process has no room for its descriptors. Only one thread may receive
/// at a time.
pub(crate) fn receive_until<D: From<OwnedFd>>(
    stream: impl AsFd,
    buffer: &mut [u8],
    most: usize,
    deadline: Deadline,
) -> Result<Received<Granted<D>>, Errno> {
    loop {
        let deadline = match is_planted("finding-14") {
            true => Deadline::after(MAX_SOCKET_TIMEOUT),
            false => deadline,
        };
        wait_until(stream.as_fd(), PollFlags::IN, deadline)?;
        match receive_now(stream.as_fd(), buffer, most) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
}

/// Room for descriptors, of which [`control_bytes`] are used: aligned, so that none of it is left
/// out, and without the slack of rustix's macro.
#[repr(C, align(8))]
struct ControlSpace([MaybeUninit<u8>; control_bytes(MAX_DESCRIPTORS)]);

/// Returns the bytes for so many descriptors and not one more.
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
    // Off the queue. Its references to the descriptors are not the last ones.
    drop_message(stream)?;
    if message.bytes == 0 && granted.is_empty() {
        return Ok(Received::HungUp);
    }
    Ok(Received::Message(message.bytes, granted))
}

/// Takes one message of a trusted peer off the queue, and closes what came with it.
pub(crate) fn drop_message(stream: impl AsFd) -> Result<(), Errno> {
    let mut no_control = RecvAncillaryBuffer::default();
    net::recvmsg(&stream, &mut [], &mut no_control, RecvFlags::DONTWAIT).map(drop)
}

/// Returns what the other end of a connection without descriptors has done, without taking it.
pub(crate) fn pending(stream: impl AsFd) -> Pending {
    let mut no_control = RecvAncillaryBuffer::default();
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    match net::recvmsg(&stream, &mut parts, &mut no_control, flags) {
        Err(Errno::AGAIN) => Pending::Nothing,
        Ok(message) if message.bytes == 0 && message.flags.is_empty() => Pending::HangUp,
        // An error is told again to who takes the message.
        Ok(_) | Err(_) => Pending::Message,
    }
}
