//! The disposer: a thread that closes descriptors that a peer sent or may have sent, if closing may
//! block.
//!
//! The last close of a descriptor that a peer chose can block as long as the peer likes
//! ([`socket`]). So the disposer thread closes it, and no other thread waits for the disposer.
//! There is only one such thread: if one close blocks forever, later ones wait too. The descriptors
//! that wait stay open. So the value that counts them against the peer's quota must be dropped by
//! the disposer too, together with the descriptors.

use super::ThreadKind;
use super::background::contain;
use crate::fork::{Birth, KeptFromChildren, PerProcess};
use crate::memfd;
use crate::socket::{self, Guard};
use crosshandle_types::observe::Limit;
use crosshandle_types::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Time after which the idle disposer thread ends.
const DISPOSER_IDLE: Duration = Duration::from_secs(1);

type Garbage = Box<dyn Send>;

struct Disposer {
    queue: VecDeque<Garbage>,
    is_running: bool,
}

static DISPOSER: PerProcess<Mutex<Disposer>> = PerProcess::new(|| {
    Mutex::new(Disposer {
        queue: VecDeque::new(),
        is_running: false,
    })
});
/// Notified when a value is added to the queue.
static ADDED: PerProcess<Condvar> = PerProcess::new(Condvar::new);

/// Drops a value on the disposer thread. Never waits.
///
/// If the system refuses to start the thread, the value stays in the queue until the next call of
/// this function.
pub fn dispose(value: impl Send + 'static) {
    let mut disposer = DISPOSER.lock();
    disposer.queue.push_back(Box::new(value));
    if disposer.is_running {
        ADDED.notify_one();
        return;
    }
    disposer.is_running = true;
    // Releases the lock, because starting a thread may take long.
    drop(disposer);
    if let Err(error) = ThreadKind::Disposer.start(work) {
        DISPOSER.lock().is_running = false;
        static LIMIT: Limit = Limit::new();
        if let Some(suppressed) = LIMIT.admit() {
            tracing::warn!(%error, suppressed, "a peer's descriptor stays open for now");
        }
    }
}

/// Drops the values in the queue, until the queue has been empty for [`DISPOSER_IDLE`].
fn work() {
    let mut disposer = DISPOSER.lock();
    let mut is_idle_time_over = false;
    loop {
        if let Some(garbage) = disposer.queue.pop_front() {
            drop(disposer);
            let _ = contain(|| drop(garbage));
            disposer = DISPOSER.lock();
            is_idle_time_over = false;
            continue;
        }
        if is_idle_time_over {
            disposer.is_running = false;
            return;
        }
        (disposer, is_idle_time_over) = ADDED.wait_timeout(disposer, DISPOSER_IDLE);
    }
}

/// A descriptor that a peer sent. The disposer closes it, unless a check shows that it is harmless.
#[derive(Debug)]
pub struct PeerDescriptor {
    /// `None` only during the drop.
    file: Option<OwnedFd>,
}

impl From<OwnedFd> for PeerDescriptor {
    fn from(file: OwnedFd) -> Self {
        Self { file: Some(file) }
    }
}

impl PeerDescriptor {
    /// Returns the descriptor if it refers to memory. Any thread may close such a descriptor, and
    /// no call on it depends on another program. The check makes no call that reaches other file
    /// systems, such as fstat(2), because such a call may block as long as closing.
    pub fn into_memory(self) -> Result<OwnedFd, Self> {
        match memfd::is_memory(self.as_fd()) {
            true => Ok(self.into_owned()),
            false => Err(self),
        }
    }

    /// Lends the descriptor to a driver. The caller must drop the returned [`Disposal`] last. If no
    /// other reference to the descriptor exists by then, the disposer closes it.
    pub fn lend(self) -> (Arc<OwnedFd>, Disposal) {
        let file = Arc::new(self.into_owned());
        (Arc::clone(&file), Disposal(Some(file)))
    }

    /// Returns the descriptor as an ordinary one, which is closed by the thread that drops it. The
    /// caller must have checked that it is harmless.
    pub fn into_owned(mut self) -> OwnedFd {
        self.file.take().expect("present until drop")
    }
}

impl AsFd for PeerDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_ref().expect("present until drop").as_fd()
    }
}

impl Drop for PeerDescriptor {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            dispose(file);
        }
    }
}

/// A reference to a lent descriptor, which must be dropped after the driver's reference (see
/// [`PeerDescriptor::lend`]).
#[derive(Debug)]
pub struct Disposal(Option<Arc<OwnedFd>>);

impl Drop for Disposal {
    fn drop(&mut self) {
        // If another reference exists, its owner has checked the descriptor.
        if let Some(file) = self.0.take().and_then(Arc::into_inner) {
            dispose(file);
        }
    }
}

/// A connection to a peer. A forked child does not inherit it. Dropping it ends the connection
/// without waiting for the messages in its queue. `T` counts the connection, and is dropped after
/// the connection has been closed.
#[derive(Debug)]
pub struct PeerStream<T: Send + 'static = ()> {
    /// `None` only during the drop.
    stream: Option<(KeptFromChildren, T)>,
    guard: Guard,
    birth: Birth,
}

impl<T: Send + 'static> PeerStream<T> {
    /// Takes ownership of a connection. `guard` is its protection against unexpected descriptors.
    pub fn new(stream: OwnedFd, guard: Guard, counted: T) -> Self {
        Self {
            stream: Some((KeptFromChildren::new(stream), counted)),
            guard,
            birth: Birth::here(),
        }
    }

    /// Returns the value that counts the connection.
    pub fn counted(&self) -> &T {
        let (_, counted) = self.stream.as_ref().expect("present until drop");
        counted
    }

    /// Returns how descriptors are kept out of this connection's queue.
    pub fn guard(&self) -> Guard {
        self.guard
    }

    /// Ends the connection. Nothing can be sent or received any more, and the peer is notified.
    pub fn hang_up(&self) {
        socket::hang_up(self);
    }
}

impl<T: Send + 'static> AsFd for PeerStream<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let (stream, _) = self.stream.as_ref().expect("present until drop");
        stream.as_fd()
    }
}

impl<T: Send + 'static> Drop for PeerStream<T> {
    fn drop(&mut self) {
        if self.birth.is_inherited() {
            // The parent counts the connection.
            std::mem::forget(self.stream.take());
            return;
        }
        match self.guard {
            // The queue contains nothing that makes closing block.
            Guard::Kernel => socket::hang_up(&*self),
            Guard::Look if socket::end(&*self) => {}
            Guard::Look => dispose(self.stream.take()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd;
    use crosshandle_types::sync::Deadline;
    use rustix::io::{Errno, write};
    use rustix::net::sockopt;
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::{Receiver, channel};
    use std::time::{Duration, Instant};

    const DEADLINE: Duration = Duration::from_secs(20);
    /// Time that the last close of a [`SlowToClose`] blocks. Longer than [`SOON`].
    const LINGER: Duration = Duration::from_secs(6);
    /// Maximum time of a call that doesn't block.
    const SOON: Duration = Duration::from_secs(3);

    /// A TCP socket whose last close blocks for [`LINGER`], and its other end, which reads nothing.
    struct SlowToClose {
        file: OwnedFd,
        _other: TcpStream,
    }

    fn slow() -> SlowToClose {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let stream = TcpStream::connect(address).expect("connected");
        let (other, _) = listener.accept().expect("connected");
        let file = OwnedFd::from(stream);
        sockopt::set_socket_linger(&file, Some(LINGER)).expect("an option");
        rustix::io::ioctl_fionbio(&file, true).expect("a mode");
        // More bytes than the other end receives.
        let bytes = vec![0; 1 << 20];
        while write(&file, &bytes).is_ok() {}
        rustix::io::ioctl_fionbio(&file, false).expect("a mode");
        SlowToClose {
            file,
            _other: other,
        }
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        socket::pair().expect("two sockets")
    }

    fn send_to(stream: &OwnedFd, file: OwnedFd) {
        socket::send(stream, b"here", &[file.as_fd()]).expect("sent");
    }

    fn is_soon<R>(f: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        let result = f();
        assert!(began.elapsed() < SOON, "it blocked: {:?}", began.elapsed());
        result
    }

    /// Returns a value whose drop sends the name of the dropping thread to the receiver.
    fn told() -> (impl Send + 'static, Receiver<String>) {
        struct Telling(std::sync::mpsc::Sender<String>);
        impl Drop for Telling {
            fn drop(&mut self) {
                let name = std::thread::current().name().unwrap_or_default().to_owned();
                let _ = self.0.send(name);
            }
        }
        let (tell, told) = channel();
        (Telling(tell), told)
    }

    #[test]
    fn the_last_close_of_a_socket_with_unsent_data_blocks() {
        // The other tests rely on this.
        let slow = slow();
        let began = Instant::now();
        drop(slow.file);
        assert!(began.elapsed() >= SOON, "{:?}", began.elapsed());
    }

    #[test]
    fn values_are_dropped_on_the_disposer_again_and_again() {
        for _ in 0..2 {
            let (value, told) = told();
            dispose(value);
            let name = told.recv_timeout(DEADLINE);
            assert_eq!(name.as_deref(), Ok(ThreadKind::Disposer.name()));
            // The thread ends during this sleep.
            std::thread::sleep(DISPOSER_IDLE + Duration::from_millis(200));
        }
    }

    #[test]
    fn a_peers_descriptor_blocks_nobody() {
        let (ours, theirs) = pair();
        let slow = slow();
        send_to(&theirs, slow.file);
        let deadline = Deadline::after(DEADLINE);
        is_soon(|| {
            let received = socket::receive_until(&ours, &mut [0; 16], 1, deadline);
            let Ok(socket::Received::Message(4, mut granted)) = received else {
                panic!("{received:?}");
            };
            let file: PeerDescriptor = granted.pop().expect("a descriptor");
            drop(file.into_memory().expect_err("no memory"));
            drop(ours);
        });
    }

    #[test]
    fn memory_is_returned_for_keeps() {
        for file in [
            memfd::create("test", 4096).expect("memory"),
            memfd::create_constant("test", b"constant").expect("memory"),
        ] {
            let read_only = memfd::reopen_read_only(file.as_fd()).expect("opened");
            for file in [file, read_only] {
                let file = PeerDescriptor::from(file).into_memory();
                file.expect("memory");
            }
        }
        let (socket, _) = pair();
        let (pipe, _write) = rustix::pipe::pipe().expect("a pipe");
        let device = std::fs::File::open("/dev/null").expect("opened").into();
        let procfs = std::fs::File::open("/proc/self/stat").expect("opened");
        for file in [socket, pipe, device, procfs.into()] {
            let file = PeerDescriptor::from(file).into_memory();
            file.expect_err("no memory");
        }
    }

    #[test]
    fn a_connection_with_a_descriptor_in_its_queue_is_dropped_at_once() {
        let (ours, theirs) = pair();
        let slow = slow();
        // The descriptor follows messages that look like the end of the connection.
        (0..3).for_each(|_| socket::send(&theirs, b"", &[]).expect("sent"));
        send_to(&theirs, slow.file);
        let ours = PeerStream::new(ours, Guard::Look, ());
        is_soon(|| drop(ours));
        // The connection has ended at once nevertheless.
        let late = socket::send(&theirs, b"late", &[]);
        assert!(matches!(late, Err(Errno::PIPE | Errno::CONNRESET)));
    }

    #[test]
    fn a_quota_is_given_back_with_the_connection() {
        let (ours, theirs) = pair();
        let slow = slow();
        send_to(&theirs, slow.file);
        let (value, told) = told();
        let ours = PeerStream::new(ours, Guard::Look, value);
        is_soon(|| drop(ours));
        let name = told.recv_timeout(DEADLINE);
        assert_eq!(name.as_deref(), Ok(ThreadKind::Disposer.name()));
    }

    #[test]
    fn a_value_that_panics_ends_nothing() {
        struct Panicking;
        impl Drop for Panicking {
            fn drop(&mut self) {
                panic!("on purpose");
            }
        }
        dispose(Panicking);
        let (value, told) = told();
        dispose(value);
        assert!(told.recv_timeout(DEADLINE).is_ok());
    }
}
