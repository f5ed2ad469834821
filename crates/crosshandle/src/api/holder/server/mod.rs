//! The holder's own loop: programs that ask for names and hand memory over, the successor, and the jobs
//! that fetch memory. Nothing in it waits for anybody: importers are answered by the exchange thread,
//! jobs run in the background, and answers wait until the successor has what they promise.

mod claims;
mod hand_over;
mod jobs;
mod names_in_directory;
mod programs;
mod questions;
mod quota;
mod take_back;

use super::journal::{self, Lost};
use super::state::Holdings;
use super::successor::{Change, Inheritance, Sent, Successor, SuccessorCommand};
use super::tuning::RESTART_INTERVAL;
use crate::error::{Error, HolderFault, Result};
use crate::ipc::broker::{Broker, HeldListener, HolderDirectory, HolderFiles, PeerPolicy};
use crate::os::socket::{self, Guard};
use jobs::Jobs;
use programs::Program;
use quota::Quota;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a holder says of itself, for people.
pub(super) type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// What a holder is told when it is started.
pub(super) struct Terms {
    pub(super) policy: PeerPolicy,
    pub(super) successor: Option<SuccessorCommand>,
    /// The holder ends when this is readable.
    pub(super) stop: Option<OwnedFd>,
    pub(super) log: Log,
}

/// A holder at work.
pub(super) struct Server {
    terms: Terms,
    path: PathBuf,
    directory: HolderDirectory,
    /// Which files of the directory are this holder's.
    files: HolderFiles,
    holdings: Holdings,
    quota: Quota,
    programs: Arc<OwnedFd>,
    guard: Guard,
    importers: Arc<OwnedFd>,
    lock: Arc<OwnedFd>,
    /// Whether the socket of programs belongs to a service manager.
    is_given: bool,
    listeners: Vec<HeldListener>,
    /// Answers `crosshandle ps`.
    _broker: Option<Arc<Broker>>,
    connected: Vec<Program>,
    next_number: u64,
    successor: Option<Successor>,
    /// When a successor is started.
    starts: Instant,
    jobs: Jobs,
    takeovers: u64,
    /// What a holder before this one had when it died with its successor.
    lost: BTreeMap<String, Lost>,
    /// Whether something has changed that the journal does not have.
    is_journal_due: bool,
}

/// Returns a copy of a descriptor of this process's own.
fn copy(file: impl AsFd) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(file, 0).map_err(Error::os("copying a descriptor"))
}

impl Server {
    /// Begins to hold in the directory at `path`, with a socket for programs that was made for it, or one
    /// of its own.
    pub(super) fn begin(path: PathBuf, programs: Option<OwnedFd>, terms: Terms) -> Result<Self> {
        let directory = HolderDirectory::open(&path, terms.policy != PeerPolicy::SameUser)?;
        let Some(lock) = directory.lock()? else {
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
            },
            directory,
            terms,
        )
    }

    /// Goes on where a holder has died.
    pub(super) fn take_over(mut inheritance: Inheritance, terms: Terms) -> Result<Self> {
        inheritance.takeovers += 1;
        // The holder died between a record and its name, or between a name and what it replaces.
        inheritance.holdings.remove_unnamed();
        let shared = terms.policy != PeerPolicy::SameUser;
        let directory = HolderDirectory::open(&inheritance.directory, shared)?;
        let mut server = Self::with(inheritance, directory, terms)?;
        // As a rule all of it is there.
        server.restore_names();
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
        } = inheritance;
        // First: importers may be waiting in its queue.
        let listener = HeldListener::serve(copy(&importers)?)?;
        let guard = socket::refuse_descriptors(&programs);
        set_nonblocking(&programs)?;
        let broker = Broker::listen(Some(&path), &terms.policy);
        if let Err(error) = &broker {
            (terms.log)(&format!(
                "`crosshandle ps` does not show this holder: {error}"
            ));
        }
        let lost = journal::read(&directory, &holdings);
        if takeovers == 0 && !lost.is_empty() {
            (terms.log)(&format!(
                "{} names were held here by a holder that died with its successor; they come back from processes \
                 that keep them (`Holder::back_up`)",
                lost.len()
            ));
        }
        Ok(Self {
            lost,
            is_journal_due: takeovers > 0,
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
            next_number: 0,
            successor: None,
            starts: Instant::now(),
            jobs: Jobs::new()?,
            takeovers,
        })
    }

    pub(super) fn takeovers(&self) -> u64 {
        self.takeovers
    }

    /// Holds until it is told to end. Then nothing is held any more.
    pub(super) fn run(mut self) -> Result<()> {
        loop {
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
            let mut is_ending = false;
            for number in ready.programs {
                is_ending |= self.attend(number);
            }
            if is_ending {
                break;
            }
            if ready.listener {
                self.accept();
            }
            self.write_journal();
            self.keep_promises();
            self.start_jobs();
        }
        self.end();
        Ok(())
    }

    /// Writes down what has changed, before anybody is promised anything.
    fn write_journal(&mut self) {
        if !std::mem::take(&mut self.is_journal_due) {
            return;
        }
        if let Err(error) = journal::write(&self.directory, &self.holdings, &self.lost) {
            (self.terms.log)(&format!(
                "what is held would not come back if this process and its successor died at once: {error}"
            ));
        }
    }

    /// Ends the successor, and leaves the directory.
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
        self.starts = Instant::now() + RESTART_INTERVAL;
        let mut successor = match Successor::start(command) {
            Ok(successor) => successor,
            Err(error) => return (self.terms.log)(&format!("no successor: {error}")),
        };
        let begin = Change::Begin {
            directory: self.path.clone(),
            is_given: self.is_given,
            takeovers: self.takeovers,
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
        successor.end_beginning();
        (self.terms.log)(&format!("process {} is the successor", successor.pid()));
        self.successor = Some(successor);
        self.attend_successor();
    }

    /// Returns what a successor is told of the sockets.
    fn sockets(&self) -> (Change, Vec<Sent>) {
        let change = Change::Sockets {
            programs: self.files.programs,
            importers: self.files.importers,
        };
        let sockets = [&self.programs, &self.importers].map(|socket| Arc::clone(socket) as Sent);
        (change, sockets.into())
    }

    /// Returns what a successor is told of the lock.
    fn lock(&self) -> (Change, Vec<Sent>) {
        let change = Change::Lock {
            file: self.files.lock,
        };
        (change, vec![Arc::clone(&self.lock) as Sent])
    }

    /// Sends the successor what it lacks, and takes what it says.
    fn attend_successor(&mut self) {
        let Some(successor) = &mut self.successor else {
            return;
        };
        let attended = successor.receive().and_then(|()| successor.send());
        if attended.is_err() {
            (self.terms.log)(&format!("the successor {} has ended", successor.pid()));
            if let Some(successor) = self.successor.take() {
                successor.end();
            }
        }
    }

    /// Tells the successor of a change. Returns the number to wait for.
    fn tell(&mut self, change: Change, files: Vec<Sent>) -> u64 {
        self.is_journal_due = true;
        let successor = self.successor.as_mut();
        successor.map_or(0, |successor| successor.tell(change, files))
    }

    fn wait(&self) -> Result<Ready> {
        let stages = self.connected.iter().filter_map(Program::late);
        let needs_successor = self.successor.is_none() && self.terms.successor.is_some();
        let next = stages.chain(needs_successor.then_some(self.starts)).min();
        let timeout = next.map(|next| next.saturating_duration_since(Instant::now()));
        // Rounded up, so that what is due is due.
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
        let programs = self.connected.iter().zip(first..);
        Ok(Ready {
            listener: is_ready(0),
            wake: is_ready(1),
            stop: of_stop.is_some_and(is_ready),
            successor: of_successor.is_some_and(is_ready),
            programs: programs
                .filter(|(_, index)| is_ready(*index))
                .map(|(program, _)| program.number)
                .collect(),
        })
    }
}

/// What there is to do.
#[derive(Default)]
struct Ready {
    listener: bool,
    wake: bool,
    stop: bool,
    successor: bool,
    programs: Vec<u64>,
}

/// A socket that another program made may block.
fn set_nonblocking(socket: &OwnedFd) -> Result<()> {
    rustix::io::ioctl_fionbio(socket, true).map_err(Error::os("looking at the holder's socket"))
}
