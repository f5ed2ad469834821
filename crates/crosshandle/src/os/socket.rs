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

use super::is_planted;
use super::lock::last_error;
use super::tuning::MAX_SOCKET_TIMEOUT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType,
};
use smallvec::SmallVec;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr;
use std::time::{Duration, Instant};

/// Descriptors that come with a message that is not one of many.
pub(crate) const FEW_DESCRIPTORS: usize = 2;
/// The most descriptors that come with one message. Far fewer than the kernel takes (253), so that a process
/// with few descriptors has room for them, and only few are under way at a time.
pub(crate) const MAX_DESCRIPTORS: usize = 64;

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
/// ([`Errno::TIMEDOUT`]), or for ever.
pub(crate) fn connect(path: &Path, deadline: Option<Instant>) -> Result<OwnedFd, Errno> {
    let stream = socket(SocketFlags::empty())?;
    connect_to(&stream, path, deadline)?;
    Ok(stream)
}

fn connect_to(stream: &OwnedFd, path: &Path, deadline: Option<Instant>) -> Result<(), Errno> {
    let address = SocketAddrUnix::new(path)?;
    loop {
        if let Some(deadline) = deadline {
            // Zero is not a timeout.
            let left = left(deadline).max(Duration::from_micros(1));
            net::sockopt::set_socket_timeout(stream, net::sockopt::Timeout::Send, Some(left))?;
        }
        match net::connect(stream, &address) {
            Err(Errno::AGAIN) => return Err(Errno::TIMEDOUT),
            Err(Errno::INTR) if deadline.is_some_and(|deadline| left(deadline).is_zero()) => {
                return Err(Errno::TIMEDOUT);
            }
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// Returns the time until `deadline`, as far as the kernel can count it.
fn left(deadline: Instant) -> Duration {
    let left = deadline.saturating_duration_since(Instant::now());
    left.min(MAX_SOCKET_TIMEOUT)
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
/// [`MAX_DESCRIPTORS`]. Waits for it until `deadline` ([`Errno::TIMEDOUT`]), or for ever; signals don't
/// prolong that.
///
/// Two errors leave the message in the queue: [`Errno::MSGSIZE`], it is longer than the buffer, and
/// [`Errno::MFILE`], this process has no room for its descriptors. Only one thread may receive
/// at a time.
pub(crate) fn receive_until<D: From<OwnedFd>>(
    stream: impl AsFd,
    buffer: &mut [u8],
    most: usize,
    deadline: Option<Instant>,
) -> Result<Received<Granted<D>>, Errno> {
    loop {
        let deadline = match is_planted("finding-14") {
            true => deadline.map(|_| Instant::now() + MAX_SOCKET_TIMEOUT),
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

/// Looks at the next message without taking it. [`ReturnFlags::CTRUNC`]: it carries descriptors.
fn look(stream: impl AsFd) -> Result<ReturnFlags, Errno> {
    let mut no_control = RecvAncillaryBuffer::default();
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let message = net::recvmsg(&stream, &mut [], &mut no_control, flags)?;
    Ok(message.flags)
}

/// Ends a connection, in copies of its descriptor too.
pub(crate) fn hang_up(stream: impl AsFd) {
    // It fails only if the connection has ended.
    let _ = net::shutdown(&stream, Shutdown::Both);
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

/// Waits until there is something to read or room to write, until `deadline` at most
/// ([`Errno::TIMEDOUT`]).
pub(crate) fn wait_until(
    stream: BorrowedFd<'_>,
    what: PollFlags,
    deadline: Option<Instant>,
) -> Result<(), Errno> {
    loop {
        let left = deadline.map(left);
        let limit: Option<Timespec> = left.and_then(|left| left.try_into().ok());
        match poll(&mut [PollFd::new(&stream, what)], limit.as_ref()) {
            Ok(0) if left.is_some_and(|left| left < MAX_SOCKET_TIMEOUT) => {
                return Err(Errno::TIMEDOUT);
            }
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memfd;
    use std::cell::Cell;
    use std::fs;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    const DEADLINE: Duration = Duration::from_secs(20);

    fn deadline() -> Option<Instant> {
        Some(Instant::now() + DEADLINE)
    }

    /// A path in a directory of its own.
    fn path() -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("xh-socket-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).expect("a directory");
        directory.join("socket")
    }

    fn remove(path: &Path) {
        fs::remove_dir_all(path.parent().expect("a directory")).expect("removed");
    }

    fn files<const N: usize>() -> [OwnedFd; N] {
        [(); N].map(|()| memfd::create("test", 4096).expect("memory"))
    }

    fn send_files<const N: usize>(stream: &OwnedFd, message: &[u8]) -> Result<(), Errno> {
        let files = files::<N>();
        let files = files.each_ref().map(AsFd::as_fd);
        // More than `send` takes, as a stranger may.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let parts = [IoSlice::new(message)];
        net::sendmsg(stream, &parts, &mut control, flags).map(drop)
    }

    fn receive_files(stream: &OwnedFd) -> Result<Received<Granted<OwnedFd>>, Errno> {
        receive_until(stream, &mut [0; 4], FEW_DESCRIPTORS, deadline())
    }

    #[test]
    fn connections_have_their_listeners_guard() {
        let path = path();
        let (listener, guard) = listen(&path).expect("a listener");
        // Before and after the connection is taken.
        let early = connect(&path, deadline()).expect("connected");
        let sent_early = send_files::<1>(&early, b"1");
        let accepted = accept(&listener).expect("a connection");
        let sent_late = send_files::<1>(&early, b"2");
        match guard {
            Guard::Kernel => {
                assert_eq!(
                    (sent_early, sent_late),
                    (Err(Errno::PERM), Err(Errno::PERM))
                );
                send(&early, b"3", &[]).expect("sent");
                let received = receive(&accepted, &mut [0; 4], guard);
                assert!(matches!(received, Ok(Received::Message(1, ()))));
            }
            Guard::Look => {
                assert_eq!((sent_early, sent_late), (Ok(()), Ok(())));
                let received = receive(&accepted, &mut [0; 4], guard);
                assert!(matches!(received, Ok(Received::Unwanted)));
            }
        }
        remove(&path);
    }

    #[test]
    fn without_the_kernels_help_descriptors_are_seen_and_left_where_they_are() {
        let (ours, theirs) = pair().expect("two sockets");
        let mut buffer = [0; 4];
        let empty = receive(&ours, &mut buffer, Guard::Look);
        assert!(matches!(empty, Err(Errno::AGAIN)));
        send(&theirs, b"good", &[]).expect("sent");
        // Like the end of the connection, but for its descriptors.
        send_files::<8>(&theirs, b"").expect("sent");
        let good = receive(&ours, &mut buffer, Guard::Look);
        assert!(matches!(good, Ok(Received::Message(4, ()))));
        assert_eq!(&buffer, b"good");
        for _ in 0..2 {
            let bad = receive(&ours, &mut buffer, Guard::Look);
            assert!(matches!(bad, Ok(Received::Unwanted)));
        }
        assert!(!end(&ours), "it is in the queue still");
    }

    #[test]
    fn what_is_pending_is_told_and_left_where_it_is() {
        let (ours, theirs) = pair().expect("two sockets");
        assert_eq!(pending(&ours), Pending::Nothing);
        send(&theirs, b"here", &[]).expect("sent");
        drop(theirs);
        assert_eq!(pending(&ours), Pending::Message);
        let message = receive(&ours, &mut [0; 4], Guard::Look);
        assert!(matches!(message, Ok(Received::Message(4, ()))));
        assert_eq!(pending(&ours), Pending::HangUp);
        let (ours, theirs) = pair().expect("two sockets");
        // Like the end of the connection, but for its descriptors.
        send_files::<1>(&theirs, b"").expect("sent");
        assert_eq!(pending(&ours), Pending::Message);
        assert!(!end(&ours), "it is in the queue still");
    }

    #[test]
    fn hang_ups_and_long_messages_are_told() {
        for guard in [Guard::Kernel, Guard::Look] {
            let (ours, theirs) = pair().expect("two sockets");
            send(&theirs, b"too long", &[]).expect("sent");
            let long = receive(&ours, &mut [0; 4], guard);
            assert!(matches!(long, Err(Errno::MSGSIZE)));
            drop(theirs);
            let end = receive(&ours, &mut [0; 4], guard);
            assert!(matches!(end, Ok(Received::HungUp)));
        }
        let (ours, theirs) = pair().expect("two sockets");
        send(&theirs, b"too long", &[]).expect("sent");
        assert!(matches!(receive_files(&ours), Err(Errno::MSGSIZE)));
        drop_message(&ours).expect("it was there");
        drop(theirs);
        assert!(matches!(receive_files(&ours), Ok(Received::HungUp)));
    }

    #[test]
    fn descriptors_come_with_their_message_and_no_more_than_expected() {
        let (ours, theirs) = pair().expect("two sockets");
        send(&theirs, b"none", &[]).expect("sent");
        send_files::<1>(&theirs, b"one").expect("sent");
        send_files::<2>(&theirs, b"two").expect("sent");
        send_files::<3>(&theirs, b"more").expect("sent");
        for (len, count) in [(4, 0), (3, 1), (3, 2)] {
            let received = receive_files(&ours);
            let Ok(Received::Message(got, files)) = received else {
                panic!("{received:?}");
            };
            assert_eq!((got, files.len()), (len, count));
            assert!(files.iter().all(memfd::is_memory));
        }
        assert!(matches!(receive_files(&ours), Ok(Received::Unwanted)));
        assert!(!end(&ours), "it is in the queue still");
    }

    #[test]
    fn many_descriptors_come_to_who_expects_them() {
        let (ours, theirs) = pair().expect("two sockets");
        for (most, sent, is_wanted) in
            [(64, 64, true), (7, 7, true), (7, 8, false), (63, 64, false)]
        {
            let files: Vec<_> = (0..sent).map(|_| files::<1>()).collect();
            let files: Vec<_> = files.iter().map(|[file]| file.as_fd()).collect();
            assert_eq!(has_unread(&theirs), Ok(false));
            send(&theirs, b"many", &files).expect("sent");
            assert_eq!(has_unread(&theirs), Ok(true));
            let received = receive_until::<OwnedFd>(&ours, &mut [0; 4], most, deadline());
            match received {
                Ok(Received::Message(4, files)) if is_wanted => {
                    assert_eq!(files.len(), sent);
                    assert!(files.iter().all(memfd::is_memory));
                }
                Ok(Received::Unwanted) if !is_wanted => drop_message(&ours).expect("it was there"),
                other => panic!("{sent} of {most}: {other:?}"),
            }
        }
    }

    #[test]
    fn what_arrives_is_of_the_callers_type_also_when_it_is_refused() {
        thread_local! {
            static DROPPED: Cell<u32> = const { Cell::new(0) };
        }
        struct Counted(OwnedFd);
        impl From<OwnedFd> for Counted {
            fn from(file: OwnedFd) -> Self {
                Self(file)
            }
        }
        impl Drop for Counted {
            fn drop(&mut self) {
                assert!(memfd::is_memory(&self.0));
                DROPPED.set(DROPPED.get() + 1);
            }
        }
        let (ours, theirs) = pair().expect("two sockets");
        send_files::<3>(&theirs, b"more").expect("sent");
        let received = receive_until::<Counted>(&ours, &mut [0; 4], FEW_DESCRIPTORS, deadline());
        assert!(matches!(received, Ok(Received::Unwanted)));
        assert_eq!(DROPPED.get(), 2);
    }

    #[test]
    fn an_end_leaves_an_empty_queue_or_says_that_it_is_none() {
        for has_hung_up in [false, true] {
            let (ours, theirs) = pair().expect("two sockets");
            let theirs = (!has_hung_up).then_some(theirs);
            assert!(end(&ours), "nothing was ever sent");
            if let Some(theirs) = theirs {
                assert_eq!(send(&theirs, b"late", &[]), Err(Errno::PIPE));
            }
            assert!(end(&ours), "and nothing comes");
        }
        for has_hung_up in [false, true] {
            let (ours, theirs) = pair().expect("two sockets");
            send(&ours, b"never read", &[]).expect("sent");
            send(&theirs, b"", &[]).expect("sent");
            let _theirs = (!has_hung_up).then_some(theirs);
            assert!(!end(&ours), "an empty message is one");
            drop_message(&ours).expect("it was there");
            assert!(end(&ours));
        }
    }

    #[test]
    fn one_deadline_holds_for_all_that_is_waited_for() {
        let (ours, theirs) = pair().expect("two sockets");
        let talking = thread::spawn(move || {
            // A peer that always says something in time, but never what is waited for.
            while send(&theirs, b"no", &[]).is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
        let began = Instant::now();
        let deadline = Some(began + Duration::from_millis(200));
        let end = loop {
            match receive_until::<OwnedFd>(&ours, &mut [0; 4], FEW_DESCRIPTORS, deadline) {
                Ok(Received::Message(2, _)) => {}
                end => break end,
            }
            assert!(began.elapsed() < DEADLINE, "the peer never ends");
        };
        assert!(matches!(end, Err(Errno::TIMEDOUT)));
        assert!(began.elapsed() >= Duration::from_millis(200));
        drop(ours);
        talking.join().expect("the peer");
    }

    #[test]
    fn connecting_has_one_deadline() {
        let path = path();
        let (listener, _) = listen(&path).expect("a listener");
        let mut queued = Vec::new();
        let late = loop {
            let began = Instant::now();
            match connect(&path, Some(began + Duration::from_millis(100))) {
                Ok(stream) => queued.push(stream),
                late => break late,
            }
            assert!(queued.len() < 1 << 12, "the queue has an end");
        };
        assert_eq!(late.err(), Some(Errno::TIMEDOUT));
        drop(listener);
        let refused = connect(&path, deadline());
        assert_eq!(refused.err(), Some(Errno::CONNREFUSED));
        remove(&path);
    }
}
