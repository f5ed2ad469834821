//! The disposer: a thread that closes what a peer sent, or may have sent, where that may block.
//!
//! The last close of a descriptor that a peer chose blocks for as long as the peer likes
//! ([`socket`]). So this thread makes it, and nothing waits for this thread. It is one thread: if a
//! close blocks for ever, later ones wait too. They cost descriptors, so what counts against a
//! peer's quota must be dropped here as well, together with them.

use super::ThreadKind;
use super::background::contain;
use super::tuning::DISPOSER_IDLE;
use crate::observe::Limit;
use crate::os::fork::{Birth, KeptFromChildren, PerProcess};
use crate::os::memfd;
use crate::os::socket::{self, Guard};
use crate::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

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
/// Notified of what is added to the queue.
static ADDED: PerProcess<Condvar> = PerProcess::new(Condvar::new);

/// Drops a value on the disposer thread. Never waits.
///
/// If the system starts no more threads, the value stays until the next one is disposed of.
pub(crate) fn dispose(value: impl Send + 'static) {
    let mut disposer = DISPOSER.lock();
    disposer.queue.push_back(Box::new(value));
    if disposer.is_running {
        ADDED.notify_one();
        return;
    }
    disposer.is_running = true;
    // Without the lock, which the system may take long with.
    drop(disposer);
    if let Err(error) = ThreadKind::Disposer.start(work) {
        DISPOSER.lock().is_running = false;
        static LIMIT: Limit = Limit::new();
        if let Some(suppressed) = LIMIT.admit() {
            tracing::warn!(%error, suppressed, "a peer's descriptor stays open for now");
        }
    }
}

/// Drops what is in the queue, until there was nothing for a while.
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

/// A descriptor that a peer sent. The disposer closes it, unless it turns out to be harmless.
#[derive(Debug)]
pub(crate) struct PeerDescriptor {
    /// `None` only while it is being dropped.
    file: Option<OwnedFd>,
}

impl From<OwnedFd> for PeerDescriptor {
    fn from(file: OwnedFd) -> Self {
        Self { file: Some(file) }
    }
}

impl PeerDescriptor {
    /// Returns the descriptor if it is of memory: any thread may close it, and no call on it depends on
    /// another program. Asks nothing of other file systems, whose answer (that of fstat(2), say) may
    /// take as long as their closing.
    pub(crate) fn into_memory(self) -> Result<OwnedFd, Self> {
        match memfd::is_memory(self.as_fd()) {
            true => Ok(self.into_owned()),
            false => Err(self),
        }
    }

    /// Returns the descriptor for a driver to look at, and what must be dropped after it: unless
    /// somebody has kept the descriptor by then, it is disposed of.
    pub(crate) fn lend(self) -> (Arc<OwnedFd>, Disposal) {
        let file = Arc::new(self.into_owned());
        (Arc::clone(&file), Disposal(Some(file)))
    }

    /// Returns the descriptor, which the caller has found to be harmless: from now on whichever thread
    /// drops it closes it.
    pub(crate) fn into_owned(mut self) -> OwnedFd {
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

/// The last but one reference to a peer's descriptor: see [`PeerDescriptor::lend`].
#[derive(Debug)]
pub(crate) struct Disposal(Option<Arc<OwnedFd>>);

impl Drop for Disposal {
    fn drop(&mut self) {
        // Whoever has kept it has found it to be in order.
        if let Some(file) = self.0.take().and_then(Arc::into_inner) {
            dispose(file);
        }
    }
}

/// A connection to a peer: no forked child has it, and dropping it ends it without waiting for what
/// lies in its queue. `T`: what counts the connection, dropped after it has been closed.
#[derive(Debug)]
pub(crate) struct PeerStream<T: Send + 'static = ()> {
    /// `None` only while it is being dropped.
    stream: Option<(KeptFromChildren, T)>,
    guard: Guard,
    birth: Birth,
}

impl<T: Send + 'static> PeerStream<T> {
    /// Takes charge of a connection. `guard`: who keeps descriptors away from it, or
    /// [`Guard::Look`] if they may come.
    pub(crate) fn new(stream: OwnedFd, guard: Guard, counted: T) -> Self {
        Self {
            stream: Some((KeptFromChildren::new(stream), counted)),
            guard,
            birth: Birth::here(),
        }
    }

    /// Returns what counts the connection.
    pub(crate) fn counted(&self) -> &T {
        let (_, counted) = self.stream.as_ref().expect("present until drop");
        counted
    }

    /// Returns who keeps descriptors away from this connection.
    pub(crate) fn guard(&self) -> Guard {
        self.guard
    }

    /// Ends the connection: nothing can be sent or received any more, and the peer is told.
    pub(crate) fn hang_up(&self) {
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
            // The parent counts it.
            std::mem::forget(self.stream.take());
            return;
        }
        match self.guard {
            // Nothing in its queue makes closing it block.
            Guard::Kernel => socket::hang_up(&*self),
            Guard::Look if socket::end(&*self) => {}
            Guard::Look => dispose(self.stream.take()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memfd;
    use crate::sync::Deadline;
    use rustix::io::{Errno, write};
    use rustix::net::sockopt;
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::{Receiver, channel};
    use std::time::{Duration, Instant};

    const DEADLINE: Duration = Duration::from_secs(20);
    /// How long the last close of a [`SlowToClose`] blocks: longer than any step here may take.
    const LINGER: Duration = Duration::from_secs(6);
    /// What a call that doesn't block may take.
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
        // More than the other end takes.
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

    /// A value that tells when it has been dropped.
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
        // What the other tests rely on.
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
            // The thread ends meanwhile.
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
        // Behind messages that look like the end of the connection.
        (0..3).for_each(|_| socket::send(&theirs, b"", &[]).expect("sent"));
        send_to(&theirs, slow.file);
        let ours = PeerStream::new(ours, Guard::Look, ());
        is_soon(|| drop(ours));
        // It's ended at once nevertheless.
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
