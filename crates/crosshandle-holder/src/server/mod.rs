//! The main loop of the holder. It serves programs that ask for names or hand memory over, the
//! successor, and background jobs that fetch memory. The loop never blocks on a single peer: the
//! exchange thread serves importers, and jobs run in the background. A reply about a change waits
//! until the successor has confirmed the change, for a limited time.

mod claims;
mod hand_over;
mod jobs;
mod names_in_directory;
mod programs;
mod quota;
mod requests;
mod take_back;

use super::exchange::ask_once;
use super::identity::Asker;
use super::journal::{self, Journal, Lost, State};
use super::message::{Envelope, PROTOCOL, Request};
use super::segment::Drivers;
use super::state::Holdings;
use super::succession::{Change, Heard, Inheritance, Sent, Successor, SuccessorCommand, version};
use crosshandle_ipc::broker::{Broker, HeldListener, HolderDirectory, HolderFiles, PeerPolicy};
use crosshandle_os::socket::{self, Guard};
use crosshandle_os::threads::round_robin::{Party, RoundRobin};
use crosshandle_types::error::{Error, HolderFault, Result};
use crosshandle_types::sync::Deadline;
use jobs::Jobs;
use names_in_directory::Watched;
use programs::Program;
use quota::Quota;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of requests that the holder answers before it polls again for new ones. A larger
/// value saves system calls under load, but new requests wait for longer.
const MAX_REQUESTS_AT_ONCE: usize = 16;

/// Time after which the holder stops answering and polls for new requests, since some requests ask
/// for long lists or contain long garbage. A longer time makes new requests wait. A shorter time
/// costs more system calls under load.
const REQUESTS_TIME_AT_ONCE: Duration = Duration::from_millis(1);

/// Time that a new holder waits for the lock of a killed holder, until the system has ended all
/// threads of that process.
const LOCK_TIME: Duration = Duration::from_secs(3);

/// Time in which the process that owns the lock must reply to be taken for a running holder.
const LOCK_INTERVAL: Duration = Duration::from_millis(200);

/// Delay before a holder starts another successor in the place of one that ended or did not start.
const RESTART_INTERVAL: Duration = Duration::from_millis(100);

/// Longest delay before a holder starts another successor, if the previous ones never became
/// complete.
const MAX_RESTART_INTERVAL: Duration = Duration::from_secs(2);

/// Importance of a log line of a holder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum LogLevel {
    /// Normal operation.
    Detail,
    /// The holder has begun, a successor has taken over, or names have come back.
    Notice,
    /// Held memory is not safe, or an operation has failed.
    Warning,
}

/// Receives the log lines of a holder. They are meant for people.
pub(super) type Log = Arc<dyn Fn(LogLevel, &str) + Send + Sync>;

/// Settings with which a holder is started.
pub(super) struct Terms {
    pub(super) policy: PeerPolicy,
    pub(super) successor: Option<SuccessorCommand>,
    /// The holder ends when this descriptor is readable.
    pub(super) stop: Option<OwnedFd>,
    pub(super) log: Log,
    pub(super) drivers: Drivers,
}

/// A running holder.
pub(super) struct Server {
    terms: Terms,
    path: PathBuf,
    directory: HolderDirectory,
    /// The files in the directory that belong to this holder.
    files: HolderFiles,
    holdings: Holdings,
    quota: Quota,
    programs: Arc<OwnedFd>,
    guard: Guard,
    importers: Arc<OwnedFd>,
    lock: Arc<OwnedFd>,
    /// Whether the socket for programs belongs to a service manager.
    is_given: bool,
    listeners: Vec<HeldListener>,
    /// Answers the queries of `crosshandle ps`.
    _broker: Option<Arc<Broker>>,
    connected: Vec<Program>,
    /// The programs that have sent a request or hung up.
    queue: RoundRobin,
    next_number: u64,
    successor: Option<Successor>,
    /// When the next successor may be started.
    starts: Instant,
    /// Delay before another successor is started if this one never becomes complete.
    restart: Duration,
    /// A name that the successor cannot take over, and the reason why.
    dropped: Option<(String, String)>,
    jobs: Jobs,
    takeovers: u64,
    /// The names that a previous holder had when it died together with its successor.
    lost: BTreeMap<String, Lost>,
    journal: Journal,
    watched: Watched,
}

/// Duplicates a descriptor.
fn copy(file: impl AsFd) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(file, 0).map_err(Error::os("copying a descriptor"))
}

/// Takes the lock of the directory. Returns `None` if a running holder has it. A holder that was
/// killed keeps its lock and its sockets until the system has ended all its threads, but it answers
/// no request.
fn take_lock(directory: &HolderDirectory, path: &Path) -> Result<Option<OwnedFd>> {
    let deadline = Deadline::after(LOCK_TIME);
    let directories = [path.to_owned()];
    let envelope = Envelope {
        protocol: PROTOCOL,
        token: None,
        request: Request::Status,
    };
    let request = serde_json::to_vec(&envelope).expect("plain data");
    let answers = || {
        let deadline = Deadline::after(LOCK_INTERVAL);
        ask_once(
            &directories,
            &PeerPolicy::Anyone,
            &request,
            deadline,
            &mut 0,
        )
        .is_ok()
    };
    loop {
        let lock = directory.lock()?;
        if lock.is_some() || answers() || !deadline.sleep(RESTART_INTERVAL / 10) {
            return Ok(lock);
        }
    }
}

impl Server {
    /// Starts a holder in the directory at `path`. `programs` is a socket that a service manager
    /// made for the holder. Without it, the holder creates its own socket.
    pub(super) fn begin(path: PathBuf, programs: Option<OwnedFd>, terms: Terms) -> Result<Self> {
        let directory = HolderDirectory::open(&path, terms.policy != PeerPolicy::SameUser)?;
        let Some(lock) = take_lock(&directory, &path)? else {
            return Err(Error::Holder {
                fault: HolderFault::SecondHolder,
                why: format!(
                    "a holder answers in {} already; ask it with `crosshandle ls`",
                    path.display()
                ),
            });
        };
        let importers = directory.listen_for_importers()?;
        directory.remove_left_names();
        let is_given = programs.is_some();
        let programs = match programs {
            Some(given) => given,
            None => directory.listen_for_programs()?,
        };
        let holdings = Holdings::new(terms.policy.clone());
        let files = directory.files();
        Self::with(
            Inheritance {
                directory: path,
                programs,
                importers,
                lock,
                is_given,
                takeovers: 0,
                files,
                holdings,
                lost: None,
                dropped: BTreeMap::new(),
            },
            directory,
            terms,
        )
    }

    /// Continues in the place of a holder that has died.
    pub(super) fn take_over(mut inheritance: Inheritance, terms: Terms) -> Result<Self> {
        inheritance.takeovers += 1;
        // The holder may have died between sending a record and its name, or between a name and the
        // release of the previous version.
        inheritance.holdings.remove_unnamed();
        let shared = terms.policy != PeerPolicy::SameUser;
        let directory = HolderDirectory::open(&inheritance.directory, shared)?;
        let mut server = Self::with(inheritance, directory, terms)?;
        // Usually all names still exist.
        server.restore_names();
        server.say(
            LogLevel::Notice,
            &format!(
                "process {} holds now in {}, as successor number {}",
                crosshandle_os::process::pid(),
                server.path.display(),
                server.takeovers
            ),
        );
        Ok(server)
    }

    fn with(inheritance: Inheritance, directory: HolderDirectory, terms: Terms) -> Result<Self> {
        let Inheritance {
            directory: path,
            programs,
            importers,
            lock,
            is_given,
            takeovers,
            files,
            holdings,
            lost,
            dropped,
        } = inheritance;
        // The listener comes first, since importers may be waiting in its queue.
        let listener = HeldListener::serve(copy(&importers)?)?;
        let guard = socket::refuse_descriptors(&programs);
        set_nonblocking(&programs)?;
        let broker = Broker::listen(Some(&path), &terms.policy);
        if let Err(error) = &broker {
            let why = format!("`crosshandle ps` does not show this holder: {error}");
            (terms.log)(LogLevel::Warning, &why);
        }
        let lost = lost.unwrap_or_else(|| journal::read(&directory, &holdings));
        if takeovers == 0 && !lost.is_empty() {
            let why = format!(
                "{} names were held here by a holder that died with its successor; they come back from processes \
                 that keep them (`Holder::back_up`)",
                lost.len()
            );
            (terms.log)(LogLevel::Warning, &why);
        }
        for (name, why) in &dropped {
            let why = format!("{name} is lost, since the successor could not take it over: {why}");
            (terms.log)(LogLevel::Warning, &why);
        }
        let journal = Journal::begin(&State {
            directory: &directory,
            holdings: &holdings,
            lost: &lost,
        });
        if let Some(why) = journal.failure() {
            let why = format!("what is held is not safe: {why}");
            (terms.log)(LogLevel::Warning, &why);
        }
        let watched = Watched::new(&path);
        Ok(Self {
            lost,
            journal,
            watched,
            dropped: None,
            quota: Quota::of(&terms.policy),
            terms,
            path,
            directory,
            files,
            holdings,
            programs: Arc::new(programs),
            guard,
            importers: Arc::new(importers),
            lock: Arc::new(lock),
            is_given,
            listeners: vec![listener],
            _broker: broker.ok(),
            connected: Vec::new(),
            queue: RoundRobin::default(),
            next_number: 0,
            successor: None,
            starts: Instant::now(),
            restart: RESTART_INTERVAL,
            jobs: Jobs::new()?,
            takeovers,
        })
    }

    /// Logs that this holder has started.
    pub(super) fn say_begin(&self) {
        let (pid, path) = (crosshandle_os::process::pid(), self.path.display());
        self.say(LogLevel::Notice, &format!("process {pid} holds in {path}"));
    }

    /// Writes a log line.
    fn say(&self, level: LogLevel, line: &str) {
        (self.terms.log)(level, line);
    }

    /// Runs until the holder is told to end. Then everything is released.
    ///
    /// # Errors
    /// Returns an error if the socket directory is gone, or if a limit of the system is reached.
    pub(super) fn run(mut self) -> Result<()> {
        loop {
            self.look_at_successor();
            self.start_successor();
            self.hang_up_late();
            let ready = self.wait()?;
            if ready.stop {
                break;
            }
            if ready.wake {
                self.take_finished_jobs();
            }
            if ready.successor {
                self.attend_successor();
            }
            if self.look_at_directory(ready.directory) {
                self.end();
                return Err(Error::invalid(format!(
                    "the socket directory {} is gone, so nobody can ask this holder",
                    self.path.display()
                )));
            }
            let (mut is_ending, began) = (false, Instant::now());
            for _ in 0..MAX_REQUESTS_AT_ONCE {
                let Some(index) = self.next_turn() else { break };
                is_ending |= self.attend(index);
                if began.elapsed() > REQUESTS_TIME_AT_ONCE {
                    break;
                }
            }
            if is_ending {
                break;
            }
            if ready.listener {
                self.accept_all();
            }
            self.write_journal();
            self.keep_promises();
            self.start_jobs();
        }
        self.end();
        Ok(())
    }

    /// Writes changes to the journal, before any reply reports them.
    fn write_journal(&mut self) {
        let state = State {
            directory: &self.directory,
            holdings: &self.holdings,
            lost: &self.lost,
        };
        if !self.journal.write(&state) {
            return;
        }
        match self.journal.failure() {
            Some(why) => self.say(
                LogLevel::Warning,
                &format!(
                    "what is held is not safe, since it would not come back if this process and its successor died \
                     at once: {why}"
                ),
            ),
            None => self.say(LogLevel::Notice, "the journal is written again"),
        }
    }

    /// Ends the successor, and removes this holder's names from the directory.
    fn end(&mut self) {
        if let Some(successor) = self.successor.take() {
            successor.end();
        }
        self.directory.clear(self.is_given);
    }

    fn start_successor(&mut self) {
        let Some(command) = &self.terms.successor else {
            return;
        };
        if self.successor.is_some() || Instant::now() < self.starts {
            return;
        }
        self.starts = Instant::now() + self.restart;
        self.restart = (self.restart * 2).min(MAX_RESTART_INTERVAL);
        self.dropped = None;
        let mut successor = match Successor::start(command) {
            Ok(successor) => successor,
            Err(error) => return self.say(LogLevel::Warning, &format!("no successor: {error}")),
        };
        let begin = Change::Begin {
            directory: self.path.clone(),
            is_given: self.is_given,
            takeovers: self.takeovers,
            version: version(),
        };
        successor.tell(begin, Vec::new());
        for (change, files) in [self.sockets(), self.lock()] {
            successor.tell(change, files);
        }
        for record in self.holdings.records().values() {
            let (change, files) = Change::record(record);
            successor.tell(change, files);
        }
        for name in self.holdings.names().values() {
            successor.tell(Change::Name(Box::new(name.clone())), Vec::new());
        }
        for lost in self.lost.values() {
            successor.tell(Change::Lost(Box::new(lost.clone())), Vec::new());
        }
        successor.end_beginning();
        let line = format!("process {} is the successor", successor.pid());
        self.say(LogLevel::Detail, &line);
        self.successor = Some(successor);
        self.attend_successor();
    }

    /// Returns the message and the descriptors that give a successor the sockets.
    fn sockets(&self) -> (Change, Vec<Sent>) {
        let change = Change::Sockets {
            programs: self.files.programs,
            importers: self.files.importers,
        };
        let sockets = [&self.programs, &self.importers].map(|socket| Arc::clone(socket) as Sent);
        (change, sockets.into())
    }

    /// Returns the message and the descriptor that give a successor the lock.
    fn lock(&self) -> (Change, Vec<Sent>) {
        let change = Change::Lock {
            file: self.files.lock,
        };
        (change, vec![Arc::clone(&self.lock) as Sent])
    }

    /// Sends pending messages to the successor, and handles its confirmations.
    fn attend_successor(&mut self) {
        let Some(successor) = &mut self.successor else {
            return;
        };
        let mut heard = Heard::default();
        let attended = successor.receive(&mut heard);
        let attended = attended.and_then(|()| successor.send());
        let (pid, is_complete) = (successor.pid(), successor.has_all());
        if is_complete {
            self.restart = RESTART_INTERVAL;
        }
        for (name, why) in heard.drops {
            let line =
                format!("{name} is not safe, since the successor cannot take it over: {why}");
            self.say(LogLevel::Warning, &line);
            self.dropped = Some((name, why));
        }
        if let Some(why) = heard.refuses {
            let line = format!("the successor {pid} does not follow this holder: {why}");
            self.say(LogLevel::Warning, &line);
        }
        if attended.is_err() {
            self.say(LogLevel::Detail, &format!("the successor {pid} has ended"));
            if let Some(successor) = self.successor.take() {
                successor.replace();
            }
        }
    }

    /// Replaces a successor that does not respond, for example because it is stopped.
    fn look_at_successor(&mut self) {
        let Some(successor) = &mut self.successor else {
            return;
        };
        if Instant::now() < successor.next_look() {
            return;
        }
        // Messages that arrived while this process was held up are handled first.
        self.attend_successor();
        let Some(successor) = &mut self.successor else {
            return;
        };
        if !successor.is_unresponsive() {
            return self.attend_successor();
        }
        let line = format!(
            "the successor {} does not answer and is replaced",
            successor.pid()
        );
        self.say(LogLevel::Warning, &line);
        if let Some(successor) = self.successor.take() {
            successor.replace();
        }
        self.starts = Instant::now();
    }

    /// Sends a change to the successor, and notes it for the journal. Returns the number to wait
    /// for.
    fn tell(&mut self, change: Change, files: Vec<Sent>) -> u64 {
        match &change {
            Change::Name(name) => self.journal.note(&name.name),
            Change::Forget { name } | Change::Found { name } => self.journal.note(name),
            _ => {}
        }
        let successor = self.successor.as_mut();
        successor.map_or(0, |successor| successor.tell(change, files))
    }

    /// Waits for work, and adds the programs that need attention to the queue.
    fn wait(&mut self) -> Result<Ready> {
        let stages = self.connected.iter().filter_map(Program::late);
        let needs_successor = self.successor.is_none() && self.terms.successor.is_some();
        let looks = [
            needs_successor.then_some(self.starts),
            self.successor.as_ref().map(Successor::next_look),
            self.journal.next_look(),
            self.watched.next_look(),
        ];
        let next = stages.chain(looks.into_iter().flatten()).min();
        let timeout = next.map(|next| next.saturating_duration_since(Instant::now()));
        // Rounded up, so that the work is due when the poll ends.
        let timeout = timeout.map(|timeout| timeout + Duration::from_micros(100));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut descriptors = vec![
            PollFd::new(&*self.programs, PollFlags::IN),
            PollFd::new(self.jobs.wake(), PollFlags::IN),
        ];
        let of_stop = self.terms.stop.as_ref().map(|stop| {
            descriptors.push(PollFd::new(stop, PollFlags::IN));
            descriptors.len() - 1
        });
        let of_successor = self.successor.as_ref().map(|successor| {
            let what = match successor.wants_to_send() {
                true => PollFlags::IN | PollFlags::OUT,
                false => PollFlags::IN,
            };
            descriptors.push(PollFd::from_borrowed_fd(successor.descriptor(), what));
            descriptors.len() - 1
        });
        let of_directory = self.watched.changes().map(|changes| {
            descriptors.push(PollFd::new(changes, PollFlags::IN));
            descriptors.len() - 1
        });
        let first = descriptors.len();
        for program in &self.connected {
            descriptors.push(PollFd::new(&program.stream, PollFlags::IN));
        }
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Ready::default()),
            Err(errno) => return Err(Error::os("waiting for programs")(errno)),
        }
        let is_ready = |index: usize| !descriptors[index].revents().is_empty();
        let ready = Ready {
            listener: is_ready(0),
            wake: is_ready(1),
            stop: of_stop.is_some_and(is_ready),
            successor: of_successor.is_some_and(is_ready),
            directory: of_directory.is_some_and(is_ready),
        };
        let programs: Vec<bool> = (first..descriptors.len()).map(is_ready).collect();
        for (program, is_ready) in self.connected.iter_mut().zip(programs) {
            if is_ready && !mem::replace(&mut program.is_queued, true) {
                let Asker { uid, pid } = program.asker;
                self.queue.push(Party::peer(uid, pid), program.number);
            }
        }
        Ok(ready)
    }
}

/// Work that a poll has found.
#[derive(Default)]
struct Ready {
    listener: bool,
    wake: bool,
    stop: bool,
    successor: bool,
    directory: bool,
}

/// Makes a socket non-blocking. A socket that another program made may block.
fn set_nonblocking(socket: &OwnedFd) -> Result<()> {
    rustix::io::ioctl_fionbio(socket, true).map_err(Error::os("looking at the holder's socket"))
}

#[cfg(test)]
mod tests;
