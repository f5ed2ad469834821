//! The importer's connection to an exporter's broker.

mod dialogue;

pub use dialogue::Dialogue;

use crate::broker::address::{self, PeerPolicy};
use crate::broker::deadline::OpenDeadline;
use crate::broker::protocol::{
    BadMessage, MAX_REPLY_MESSAGE, PieceTable, Refusal, Reply, Request, Serial,
};
use crate::broker::sweep;
use crosshandle_os::fork::PerProcess;
use crosshandle_os::process;
use crosshandle_os::socket::{self, Granted, Guard, MAX_DESCRIPTORS, Peer, Received, interrupt};
use crosshandle_os::threads::disposer::{PeerDescriptor, PeerStream, dispose};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::{Condvar, Deadline, Mutex};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time that an importer waits until a reply for which it has no free descriptors has been
/// discarded. After it, the importer gives up the connection.
const DISCARD_WAIT: Duration = Duration::from_secs(10);

/// Time for which an importer polls for a reply before it sleeps, if other CPUs are available. An
/// exporter's sleeping thread needs about this long to wake up. Requests to a busy exporter waste
/// this much processor time.
const REPLY_SPIN: Duration = Duration::from_micros(60);
/// The same time on a machine with [`MANY_CPUS`]. An exporter also needs time to prepare a new
/// importer's files.
const LONG_REPLY_SPIN: Duration = Duration::from_micros(250);
const MANY_CPUS: usize = 8;

/// Interval at which an importer that waits for a reply checks whether the exporter is dead,
/// although its socket is still open. Another process may have a copy of the socket. Each check
/// takes three system calls.
const EXPORTER_LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The process that serves an exporter's objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// The exporter itself.
    Exporter,
    /// The holder to which the exporter has handed memory over.
    Holder,
}

impl Route {
    fn socket_path(self, directory: &Path, exporter: u64) -> PathBuf {
        match self {
            Self::Exporter => address::socket_path(directory, exporter),
            Self::Holder => directory.join(address::held_name(exporter)),
        }
    }

    /// Returns the exporter whose liveness lock shows whether it will reply. A holder's death shows
    /// at once, because its socket hangs up.
    fn watched(self, exporter: u64) -> Option<u64> {
        (self == Self::Exporter).then_some(exporter)
    }
}

/// A connection to the broker of one exporting process, or to its holder.
pub struct Connection {
    stream: Arc<PeerStream>,
    /// The state of the requests, of which only one thread sends any at a time.
    turns: Mutex<Turns>,
    /// Notified when a turn has ended and other threads wait for theirs.
    turn_over: Condvar,
    /// The exporter's user id.
    uid: u32,
    /// Whether the exporter is another copy of this library in this process.
    is_self: bool,
    /// The exporter's process id, for messages.
    pid: u32,
    /// The exporter's process id in this process's PID namespace, or 0 if it has none there.
    peer_pid: u32,
    has_hung_up: AtomicBool,
    directory: PathBuf,
    /// The exporter, unless this is a connection to its holder.
    watched: Option<u64>,
}

/// An exporter's reply, with its pieces and descriptors.
pub struct FullReply {
    pub reply: Reply,
    pub pieces: Option<PieceTable>,
    pub granted: Granted<PeerDescriptor>,
}

/// The reason why there is no reply.
enum AskError {
    /// The exporter refused the request.
    Refused(Refusal),
    /// This process had no room for the reply's descriptors. The reply was discarded.
    NoDescriptors,
    Error(Error),
}

impl From<Error> for AskError {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// The right to send requests, which ends when this value is dropped.
struct Turn<'a> {
    connection: &'a Connection,
    /// Number of the current request.
    serial: Serial,
    /// The request, if the exporter may have replied to it before an earlier reply was read.
    early: Option<Request>,
}

impl Turn<'_> {
    /// Takes the number for another request.
    fn renew(&mut self) {
        self.serial = self.connection.turns.lock().next();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.connection.turns.lock();
        turns.is_busy = false;
        if !turns.waiting.is_empty() {
            // All waiting threads are woken: one of them is next, and there are few of them.
            self.connection.turn_over.notify_all();
        }
    }
}

#[derive(Default)]
struct Turns {
    /// Number of the latest request.
    serial: Serial,
    /// Whether a thread has the turn.
    is_busy: bool,
    /// The threads that wait for their turn, in the order of their arrival.
    waiting: VecDeque<u64>,
    next_place: u64,
    /// A request that was sent ahead of its turn, and its number.
    ahead: Option<(Request, Serial)>,
}

impl Turns {
    fn next(&mut self) -> Serial {
        self.serial = self.serial.wrapping_add(1).max(1);
        self.serial
    }
}

impl Connection {
    /// Connects to exporter `exporter` or its holder, which is found in one of the usual
    /// directories or in `directory`.
    pub fn open(
        exporter: u64,
        pid: u32,
        route: Route,
        directory: Option<&Path>,
        policy: &PeerPolicy,
        deadline: &OpenDeadline,
    ) -> Result<Self> {
        let deadline = deadline.get();
        let mut denied = None;
        for directory in address::directories(directory) {
            let path = route.socket_path(&directory, exporter);
            let watched = route.watched(exporter);
            let connected = wait(deadline, &directory, watched, |slice| {
                socket::connect(&path, slice)
            });
            let stream = match connected {
                Ok(stream) => stream,
                Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR | Errno::OWNERDEAD) => {
                    continue;
                }
                Err(Errno::ACCESS) => {
                    denied = Some(directory);
                    continue;
                }
                Err(Errno::TIMEDOUT) => {
                    // There is no connection, so only the handle identifies the exporter.
                    return Err(Error::NoAnswer {
                        doing: "connecting to the exporter,",
                        pid,
                        program: String::new(),
                    });
                }
                Err(errno) => return Err(Error::os("connecting to the exporter")(errno)),
            };
            let stream = PeerStream::new(stream, Guard::Look, ());
            // The key is sent only to an exporter that the policy admits.
            let peer = socket::peer(&stream).map_err(Error::os("asking who the exporter is"))?;
            let Peer {
                uid,
                is_self,
                pid: peer_pid,
            } = peer;
            if !policy.admits(uid) {
                return Err(Error::NotAdmitted { uid });
            }
            return Ok(Self {
                stream: Arc::new(stream),
                turns: Mutex::default(),
                turn_over: Condvar::new(),
                uid,
                is_self,
                pid,
                peer_pid,
                has_hung_up: AtomicBool::new(false),
                directory,
                watched,
            });
        }
        Err(match denied {
            Some(directory) => Error::invalid(format!(
                "the exporter was not found, and this user may not look into the socket directory \
                 {}; set {} to one that both sides may use",
                directory.display(),
                address::SOCKET_DIR_VARIABLE
            )),
            None => Error::ExporterGone { pid },
        })
    }

    /// Returns the socket, which the caller watches for a hang-up.
    pub fn stream(&self) -> Arc<PeerStream> {
        Arc::clone(&self.stream)
    }

    /// Sends a request, and waits for the reply with its descriptors.
    pub fn ask(&self, request: Request, deadline: &OpenDeadline) -> Result<FullReply> {
        let mut turn = self.await_turn(deadline)?;
        self.send(request, &mut turn, deadline)?;
        self.finish(turn, request, deadline)
    }

    /// Waits for the reply to the request of a turn, and ends the turn.
    fn finish(
        &self,
        mut turn: Turn<'_>,
        request: Request,
        deadline: &OpenDeadline,
    ) -> Result<FullReply> {
        let full = self.receive(&mut turn, request, deadline.get());
        drop(turn);
        full.map_err(|failure| self.explain_failure(failure))
    }

    /// Sends a request whose reply carries `N` descriptors, and at the same time the likely `next`
    /// request, so that its reply arrives sooner. If a different request follows, the reply to
    /// `next` is discarded.
    pub fn ask_before<const N: usize>(
        &self,
        request: Request,
        next: Option<Request>,
        deadline: &OpenDeadline,
    ) -> Result<(Reply, [PeerDescriptor; N])> {
        let mut turn = self.await_turn(deadline)?;
        self.send(request, &mut turn, deadline)?;
        if let Some(next) = next {
            let serial = self.turns.lock().next();
            self.transmit(next, serial, deadline.get())?;
            self.turns.lock().ahead = Some((next, serial));
        }
        let full = self.finish(turn, request, deadline)?;
        if full.pieces.is_some() {
            return Err(Error::Protocol("it does not match the request"));
        }
        let granted = full.granted.into_vec().try_into();
        let granted =
            granted.map_err(|_| Error::Protocol("it has a wrong number of descriptors"))?;
        Ok((full.reply, granted))
    }

    /// Sends a request whose reply carries `N` descriptors of memory, and at the same time the
    /// `next` request, like [`ask_before`](Self::ask_before).
    pub fn ask_for_memory<const N: usize>(
        &self,
        request: Request,
        next: Option<Request>,
        deadline: &OpenDeadline,
    ) -> Result<(Reply, [OwnedFd; N])> {
        let (reply, granted) = self.ask_before::<N>(request, next, deadline)?;
        let memory: Result<Vec<_>, _> = granted
            .into_iter()
            .map(PeerDescriptor::into_memory)
            .collect();
        match memory.map(TryInto::try_into) {
            Ok(Ok(memory)) => Ok((reply, memory)),
            _ => Err(Error::Protocol("it has a descriptor that is not memory")),
        }
    }

    /// Returns whether a request found that the exporter had hung up. A living exporter hangs up on
    /// connections for which it has no room.
    pub fn has_hung_up(&self) -> bool {
        self.has_hung_up.load(Ordering::Relaxed)
    }

    /// Returns the user id of the exporter.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns the process id of the replying process in this process's PID namespace, or 0 if it
    /// has none there.
    pub fn peer_pid(&self) -> u32 {
        self.peer_pid
    }

    /// Returns whether the exporter is another copy of this library in this process.
    pub fn is_self(&self) -> bool {
        self.is_self
    }

    /// Ends the connection, even if a forked child has a copy of it. Dropping would not end such a
    /// copy.
    pub fn hang_up(&self) {
        self.stream.hang_up();
    }

    /// Waits until no other thread has the turn and all earlier threads have had theirs, and
    /// returns the turn.
    fn await_turn(&self, deadline: &OpenDeadline) -> Result<Turn<'_>> {
        let mut turns = self.turns.lock();
        let place = turns.next_place;
        turns.next_place += 1;
        turns.waiting.push_back(place);
        let is_not_next =
            |turns: &mut Turns| turns.is_busy || turns.waiting.front() != Some(&place);
        let end = deadline.get();
        let waited;
        (turns, waited) = interrupt::wait_while(&self.turn_over, turns, end, is_not_next);
        turns.waiting.retain(|other| *other != place);
        if let Err(errno) = waited {
            drop(turns);
            // The thread that is next now may have been notified before.
            self.turn_over.notify_all();
            return Err(match errno {
                Errno::TIMEDOUT => self.no_reply("waiting for an earlier request to the exporter,"),
                errno => Error::os("waiting for an earlier request to the exporter")(errno),
            });
        }
        turns.is_busy = true;
        let serial = turns.next();
        drop(turns);
        Ok(Turn {
            connection: self,
            serial,
            early: None,
        })
    }

    /// Returns whether other threads wait for their turn.
    pub fn has_waiting(&self) -> bool {
        !self.turns.lock().waiting.is_empty()
    }

    /// Makes the error for an exporter that does not reply in time.
    fn no_reply(&self, doing: &'static str) -> Error {
        let (pid, program) = match self.peer_pid {
            // The exporter has no process id here, so its program is unknown.
            0 => (self.pid, String::new()),
            pid => (pid, process::program_of(pid)),
        };
        Error::NoAnswer {
            doing,
            pid,
            program,
        }
    }

    fn gone(&self) -> Error {
        self.has_hung_up.store(true, Ordering::Relaxed);
        Error::ExporterGone { pid: self.pid }
    }

    fn lost(&self, errno: Errno) -> Error {
        match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => self.gone(),
            errno => Error::os("talking to the exporter")(errno),
        }
    }

    /// Sends a request, unless it was sent ahead.
    fn send(&self, request: Request, turn: &mut Turn<'_>, deadline: &OpenDeadline) -> Result<()> {
        if let Some((ahead, serial)) = self.turns.lock().ahead.take()
            && ahead == request
        {
            turn.serial = serial;
            turn.early = Some(request);
            return Ok(());
        }
        self.transmit(request, turn.serial, deadline.get())
    }

    fn transmit(&self, request: Request, serial: Serial, deadline: Deadline) -> Result<()> {
        let message = request.encode(serial);
        // The queue of an exporter that is stopped fills up with abandoned requests.
        let sent = match socket::send(&self.stream, &message, &[]) {
            Err(Errno::AGAIN) => wait(deadline, &self.directory, self.watched, |slice| {
                socket::send_until(&self.stream, &message, &[], slice)
            }),
            sent => sent,
        };
        match sent {
            // The exporter has hung up, but may have sent the reason before.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(Errno::OWNERDEAD) => Err(Error::ExporterGone { pid: self.pid }),
            Err(Errno::TIMEDOUT) => {
                Err(self.no_reply("waiting for the exporter to read requests,"))
            }
            Err(errno) => Err(self.lost(errno)),
        }
    }

    fn receive(
        &self,
        turn: &mut Turn<'_>,
        request: Request,
        deadline: Deadline,
    ) -> Result<FullReply, AskError> {
        let (full, has_dropped) = self.receive_any(turn, deadline)?;
        if has_dropped {
            turn.early = Some(request);
        }
        match (full.reply, turn.early.take()) {
            // The request was sent before the last reply was read (see `Client::within_bounds`).
            (Reply::Refused(Refusal::Busy), Some(request)) => {
                turn.renew();
                self.transmit(request, turn.serial, deadline)?;
                self.receive(turn, request, deadline)
            }
            (Reply::Refused(refusal), _) => Err(AskError::Refused(refusal)),
            _ => Ok(full),
        }
    }

    /// Waits for the reply to the request of this turn, which may be a refusal. Also returns
    /// whether late replies to earlier requests came before it.
    fn receive_any(
        &self,
        turn: &Turn<'_>,
        deadline: Deadline,
    ) -> Result<(FullReply, bool), AskError> {
        let mut has_dropped = false;
        let mut was_reset = false;
        let mut buffer = [0; MAX_REPLY_MESSAGE];
        loop {
            let late = || self.no_reply("waiting for the exporter's reply,");
            // Late replies to abandoned requests may carry many descriptors, so the maximum is
            // accepted.
            let mut receive =
                |slice| socket::receive_until(&self.stream, &mut buffer, MAX_DESCRIPTORS, slice);
            let received = match look_for_a_moment(&mut receive) {
                Err(Errno::TIMEDOUT) => wait(deadline, &self.directory, self.watched, receive),
                received => received,
            };
            let (len, granted) = match received {
                Ok(Received::Message(len, granted)) => (len, granted),
                Ok(Received::Unwanted) => {
                    return Err(Error::Protocol("it has too many descriptors").into());
                }
                Ok(Received::HungUp) => return Err(self.gone().into()),
                // The exporter is dead permanently, so another connection would not help.
                Err(Errno::OWNERDEAD) => return Err(Error::ExporterGone { pid: self.pid }.into()),
                Err(Errno::TIMEDOUT) => return Err(late().into()),
                // The exporter has not read the request, but its last message can still be read.
                Err(Errno::CONNRESET) if !was_reset => {
                    was_reset = true;
                    continue;
                }
                // If it stayed in the queue, it would block every other reply.
                Err(Errno::MFILE) => {
                    self.discard_next()?;
                    return Err(AskError::NoDescriptors);
                }
                Err(errno) => return Err(self.lost(errno).into()),
            };
            match Reply::read(&buffer[..len]) {
                Ok((reply, of, pieces))
                    // Number 0 means that the broker could not even read the request.
                    if of == turn.serial || (of == 0 && matches!(reply, Reply::Refused(_))) =>
                {
                    let full = FullReply {
                        reply,
                        pieces,
                        granted,
                    };
                    return Ok((full, has_dropped));
                }
                // This late reply belongs to an abandoned request.
                Ok(_) if !deadline.is_over() => {
                    has_dropped = true;
                }
                Ok(_) => return Err(late().into()),
                Err(BadMessage::Version) => {
                    return Err(Error::Protocol("it has another version").into());
                }
                Err(BadMessage::Malformed(what)) => return Err(Error::Protocol(what).into()),
            }
        }
    }

    /// Discards the next message, for whose descriptors this process has no room, and waits until
    /// that is done.
    fn discard_next(&self) -> Result<()> {
        /// Takes the message when dropped. This closes descriptors that a peer chose, which may
        /// block.
        struct Discard(Arc<PeerStream>, SyncSender<()>);
        impl Drop for Discard {
            fn drop(&mut self) {
                let _ = socket::drop_message(&*self.0);
                let _ = self.1.send(());
            }
        }
        let (done, is_done) = sync_channel(1);
        // The disposer drops the descriptors that were already received before this value.
        dispose(Discard(self.stream(), done));
        if is_done.recv_timeout(DISCARD_WAIT).is_err() {
            // The disposer thread now reads the socket's queue.
            self.hang_up();
            return Err(Error::TimedOut("closing what the exporter sent"));
        }
        Ok(())
    }

    fn explain_failure(&self, failure: AskError) -> Error {
        match failure {
            AskError::Error(error) => error,
            AskError::Refused(refusal) => self.explain(refusal),
            AskError::NoDescriptors => self.lost(Errno::MFILE),
        }
    }

    fn explain(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::BadRequest => Error::Protocol("the exporter did not understand the request"),
            Refusal::Version => Error::Protocol("it has another version"),
            Refusal::UnknownContext => Error::ExporterGone { pid: self.pid },
            Refusal::NotAdmitted => Error::NotAdmitted {
                uid: rustix::process::geteuid().as_raw(),
            },
            Refusal::Stale => Error::Stale,
            Refusal::ReadOnly => Error::ReadOnly,
            Refusal::WrongKey => Error::WrongKey,
            Refusal::NoReadOnly => Error::Unsupported(
                "the exporter cannot make a descriptor for reading only, since it has no /proc; \
                 mount one in its container, or share the memory for writing"
                    .into(),
            ),
            Refusal::Moved => Error::HolderGone,
            Refusal::Busy => Error::LimitReached {
                what: "too many processes are connected to the exporter".into(),
                remedy: "try again, or close some importers".into(),
            },
            Refusal::NoRoom => Error::LimitReached {
                what: "the exporter has no room for another importer".into(),
                remedy: "close some importers, or raise the exporter's RLIMIT_NOFILE".into(),
            },
        }
    }
}

/// Number of times that an importer on the only CPU yields to the exporter before it sleeps. The
/// exporter's thread replies and sleeps again during one yield.
const REPLY_YIELDS: u32 = 2;

/// Retries `attempt` without blocking for a moment, while it times out. An exporter needs some
/// microseconds for a reply, and waking this thread would take longer.
fn look_for_a_moment<R>(mut attempt: impl FnMut(Deadline) -> Result<R, Errno>) -> Result<R, Errno> {
    static CPUS: PerProcess<OnceLock<usize>> = PerProcess::new(OnceLock::new);
    let count = || thread::available_parallelism().map_or(1, NonZero::get);
    let began = Instant::now();
    let spin = match *CPUS.get_or_init(count) {
        ..2 => Duration::ZERO,
        2..MANY_CPUS => REPLY_SPIN,
        MANY_CPUS.. => LONG_REPLY_SPIN,
    };
    if spin.is_zero() {
        let mut result = Err(Errno::TIMEDOUT);
        for _ in 0..REPLY_YIELDS {
            thread::yield_now();
            result = attempt(Deadline::at(began));
            if !matches!(result, Err(Errno::TIMEDOUT)) {
                break;
            }
        }
        return result;
    }
    loop {
        match attempt(Deadline::at(began)) {
            Err(Errno::TIMEDOUT) if began.elapsed() < spin => thread::yield_now(),
            result => return result,
        }
    }
}

/// Retries `attempt` while it times out, until `deadline`. Checks at intervals whether the exporter
/// is dead although another process has its socket, and then fails with [`Errno::OWNERDEAD`].
fn wait<R>(
    deadline: Deadline,
    directory: &Path,
    exporter: Option<u64>,
    mut attempt: impl FnMut(Deadline) -> Result<R, Errno>,
) -> Result<R, Errno> {
    // Each attempt applies this deadline too.
    let deadline = interrupt::deadline(deadline);
    loop {
        let slice = deadline.min(Deadline::after(EXPORTER_LOOK_INTERVAL));
        let is_last = slice == deadline;
        match attempt(slice) {
            Err(Errno::TIMEDOUT)
                if exporter.is_some_and(|exporter| sweep::is_known_dead(directory, exporter)) =>
            {
                return Err(Errno::OWNERDEAD);
            }
            Err(Errno::TIMEDOUT) if !is_last => {}
            result => return result,
        }
    }
}
