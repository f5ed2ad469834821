//! The holder's own loop: programs that ask for names and hand memory over, the successor, and the jobs
//! that fetch memory. Nothing in it waits for anybody: importers are answered by the exchange thread,
//! fetches run in the background, and answers wait until the successor has what they promise.

use super::message::{
    Answer, Entry, Hold, PROTOCOL, Question, Request, Right, Status, check_name, refused,
};
use super::state::{Holdings, Name, Record, RecordKey, fetch};
use super::successor::{Change, Inheritance, Successor, SuccessorCommand};
use super::tuning::{
    FETCH_TIMEOUT, LIST_BYTES, MAX_FETCHES, MAX_HELD_INDEX, MAX_MESSAGE_BYTES, MAX_PROGRAMS,
    MAX_WAITING, QUESTION_TIME, RESTART_INTERVAL, SUCCESSOR_TIME,
};
use crate::error::{Error, HolderFault, Result};
use crate::handle::MemoryHandle;
use crate::ipc::broker::{Broker, HeldListener, HolderDirectory, PeerPolicy};
use crate::ipc::{Credential, Deadline, Origin};
use crate::os::process;
use crate::os::socket::{self, Guard, Received};
use crate::threads::background;
use crate::threads::disposer::PeerStream;
use crate::types::Access;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
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

/// A program that is connected.
struct Program {
    stream: PeerStream,
    number: u64,
    stage: Stage,
}

/// How far a program's question is.
enum Stage {
    /// It has not asked yet, and is hung up on at this time.
    Silent(Instant),
    /// Memory is being fetched for it.
    Fetching,
    /// It is answered once the successor has this change, or at this time.
    Promised {
        answer: Answer,
        serial: u64,
        late: Instant,
    },
    /// It waits for a version of a name beyond this one.
    Waiting {
        name: String,
        access: Access,
        version: u64,
        token: Option<String>,
    },
}

/// What a job has fetched for a program.
struct Fetched {
    program: u64,
    hold: Hold,
    token: Option<String>,
    records: Result<Vec<Record>>,
}

/// A holder at work.
pub(super) struct Server {
    terms: Terms,
    path: PathBuf,
    directory: HolderDirectory,
    holdings: Holdings,
    programs: OwnedFd,
    guard: Guard,
    importers: Arc<OwnedFd>,
    programs_copy: Arc<OwnedFd>,
    lock: Arc<OwnedFd>,
    is_given: bool,
    _listener: HeldListener,
    /// Answers `crosshandle ps`.
    _broker: Option<Arc<Broker>>,
    connected: Vec<Program>,
    next_number: u64,
    successor: Option<Successor>,
    /// When a successor is started.
    starts: Instant,
    fetched: (Sender<Fetched>, Receiver<Fetched>),
    /// Hand-overs whose memory is being fetched, also for programs that have hung up since.
    fetching: usize,
    wake: Arc<OwnedFd>,
    takeovers: u64,
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
        Self::with(
            Inheritance {
                directory: path,
                programs,
                importers,
                lock,
                is_given,
                takeovers: 0,
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
        // As a rule all of it is there.
        inheritance.holdings.answer_for_all(&directory)?;
        Self::with(inheritance, directory, terms)
    }

    fn with(inheritance: Inheritance, directory: HolderDirectory, terms: Terms) -> Result<Self> {
        let Inheritance {
            directory: path,
            programs,
            importers,
            lock,
            is_given,
            takeovers,
            holdings,
        } = inheritance;
        // First: importers may be waiting in its queue.
        let listener = HeldListener::serve(copy(&importers)?)?;
        let guard = socket::refuse_descriptors(&programs);
        set_nonblocking(&programs)?;
        let broker = Broker::listen(&path, &terms.policy);
        if let Err(error) = &broker {
            (terms.log)(&format!(
                "`crosshandle ps` does not show this holder: {error}"
            ));
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            terms,
            path,
            directory,
            holdings,
            programs_copy: Arc::new(copy(&programs)?),
            programs,
            guard,
            importers: Arc::new(importers),
            lock: Arc::new(lock),
            is_given,
            _listener: listener,
            _broker: broker.ok(),
            connected: Vec::new(),
            next_number: 0,
            successor: None,
            starts: Instant::now(),
            fetched: channel(),
            fetching: 0,
            wake: Arc::new(wake.map_err(Error::os("making an eventfd"))?),
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
                self.take_fetched();
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
            self.keep_promises();
        }
        self.end();
        Ok(())
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
        let sockets = vec![Arc::clone(&self.programs_copy), Arc::clone(&self.importers)];
        successor.tell(begin, sockets);
        successor.tell(Change::Lock, vec![Arc::clone(&self.lock)]);
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
    fn tell(&mut self, change: Change, files: Vec<Arc<OwnedFd>>) -> u64 {
        let successor = self.successor.as_mut();
        successor.map_or(0, |successor| successor.tell(change, files))
    }

    fn wait(&self) -> Result<Ready> {
        let stages = self
            .connected
            .iter()
            .filter_map(|program| match &program.stage {
                Stage::Silent(late) | Stage::Promised { late, .. } => Some(*late),
                _ => None,
            });
        let needs_successor = self.successor.is_none() && self.terms.successor.is_some();
        let next = stages.chain(needs_successor.then_some(self.starts)).min();
        let timeout = next.map(|next| next.saturating_duration_since(Instant::now()));
        // Rounded up, so that what is due is due.
        let timeout = timeout.map(|timeout| timeout + Duration::from_micros(100));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut descriptors = vec![
            PollFd::new(&self.programs, PollFlags::IN),
            PollFd::new(&*self.wake, PollFlags::IN),
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

    fn accept(&mut self) {
        let stream = match socket::accept(&self.programs) {
            Ok(stream) => stream,
            Err(Errno::MFILE | Errno::NFILE) => {
                // Whoever waits for a version can ask again.
                self.connected
                    .retain(|program| !matches!(program.stage, Stage::Waiting { .. }));
                return;
            }
            Err(_) => return,
        };
        let is_admitted =
            socket::peer(&stream).is_ok_and(|peer| self.terms.policy.admits(peer.uid));
        let stream = PeerStream::new(stream, self.guard, ());
        if !is_admitted {
            let why = "this user is not admitted; start the holder with a wider policy";
            send(&stream, &refused(HolderFault::NotAllowed, why));
            return;
        }
        if self.connected.len() >= MAX_PROGRAMS {
            let silent = |program: &Program| matches!(program.stage, Stage::Silent(_));
            match self.connected.iter().position(silent) {
                Some(oldest) => drop(self.connected.remove(oldest)),
                None => {
                    let why = "too many programs ask this holder at once; try again";
                    send(&stream, &refused(HolderFault::Refused, why));
                    return;
                }
            }
        }
        self.next_number += 1;
        self.connected.push(Program {
            stream,
            number: self.next_number,
            stage: Stage::Silent(Instant::now() + QUESTION_TIME),
        });
    }

    fn hang_up_late(&mut self) {
        let now = Instant::now();
        self.connected
            .retain(|program| !matches!(&program.stage, Stage::Silent(late) if *late <= now));
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.connected
            .iter()
            .position(|program| program.number == number)
    }

    /// Takes a program's question or hang-up. Returns whether it wants the holder to end.
    fn attend(&mut self, number: u64) -> bool {
        let Some(index) = self.position(number) else {
            return false;
        };
        let program = &self.connected[index];
        let mut buffer = vec![0; MAX_MESSAGE_BYTES];
        let len = match socket::receive(&program.stream, &mut buffer, self.guard) {
            Ok(Received::Message(len, ())) => len,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOMEM | Errno::NOBUFS) => return false,
            _ => {
                self.connected.swap_remove(index);
                return false;
            }
        };
        // One question at a time.
        if !matches!(program.stage, Stage::Silent(_)) {
            self.connected.swap_remove(index);
            return false;
        }
        let answer = match serde_json::from_slice::<Request>(&buffer[..len]) {
            Ok(request) if request.protocol == PROTOCOL => {
                let is_stop = matches!(request.question, Question::Stop);
                match self.answer(number, request) {
                    Some(answer) if is_stop => {
                        if matches!(answer, Answer::Done) {
                            // First: who has the answer may end this process, too.
                            self.end();
                        }
                        let program = &self.connected[index];
                        send(&program.stream, &answer);
                        return matches!(answer, Answer::Done);
                    }
                    answer => answer,
                }
            }
            Ok(_) => Some(refused(
                HolderFault::Refused,
                "the holder is of another version of crosshandle",
            )),
            Err(_) => Some(refused(
                HolderFault::Refused,
                "the holder does not understand the question; both sides need one version of crosshandle",
            )),
        };
        if let Some(answer) = answer {
            self.reply(number, &answer);
        }
        false
    }

    /// Answers a program that waits for it.
    fn reply(&mut self, number: u64, answer: &Answer) {
        let Some(index) = self.position(number) else {
            return;
        };
        let program = &mut self.connected[index];
        program.stage = Stage::Silent(Instant::now() + QUESTION_TIME);
        if !send(&program.stream, answer) {
            self.connected.swap_remove(index);
        }
    }

    /// Answers once the successor has all changes so far.
    fn promise(&mut self, number: u64, answer: Answer) {
        let serial = self.successor.as_ref().map_or(0, Successor::serial);
        if let Some(index) = self.position(number) {
            self.connected[index].stage = Stage::Promised {
                answer,
                serial,
                late: Instant::now() + SUCCESSOR_TIME,
            };
        }
        self.attend_successor();
    }

    /// Gives the answers whose promise is kept, or late.
    fn keep_promises(&mut self) {
        let now = Instant::now();
        let is_alone = self.terms.successor.is_none();
        let mut due = Vec::new();
        for program in &mut self.connected {
            let Stage::Promised { serial, late, .. } = &program.stage else {
                continue;
            };
            // A successor that was started since has told it among what came first.
            let is_kept = self
                .successor
                .as_ref()
                .is_some_and(|it| it.has(*serial.min(&it.serial())));
            if !(is_kept || is_alone || *late <= now) {
                continue;
            }
            let silent = Stage::Silent(now + QUESTION_TIME);
            let Stage::Promised { answer, .. } = std::mem::replace(&mut program.stage, silent)
            else {
                continue;
            };
            let answer = match answer {
                Answer::HandedOver { version, .. } => Answer::HandedOver {
                    version,
                    is_safe: is_kept,
                },
                answer => answer,
            };
            due.push((program.number, answer));
        }
        for (number, answer) in due {
            self.reply(number, &answer);
        }
    }

    /// Answers a question; `None`: later.
    fn answer(&mut self, number: u64, request: Request) -> Option<Answer> {
        let Request {
            token, question, ..
        } = request;
        let token = token.as_deref();
        Some(match question {
            Question::Hold(hold) => return self.hold(number, hold, token),
            Question::Open { name, writes } => match self.open(&name, access_of(writes), token) {
                Ok(entry) => Answer::Opened(entry),
                Err(refusal) => refusal,
            },
            Question::Await {
                name,
                writes,
                version,
            } => {
                let access = access_of(writes);
                match self.open(&name, access, token) {
                    Ok(entry) if entry.version > version => Answer::Opened(entry),
                    Ok(_) if self.waiting() >= MAX_WAITING => refused(
                        HolderFault::Refused,
                        "too many programs wait for versions at this holder; ask again later",
                    ),
                    Ok(_) => {
                        let index = self.position(number)?;
                        self.connected[index].stage = Stage::Waiting {
                            name,
                            access,
                            version,
                            token: token.map(str::to_owned),
                        };
                        return None;
                    }
                    Err(refusal) => refusal,
                }
            }
            Question::List { after } => self.list(after.as_deref()),
            Question::Remove { name } => match self.administrate(&name, token) {
                Ok(name) if name.pinned => {
                    let why = format!("{} is pinned; unpin it first", name.name);
                    refused(HolderFault::Pinned, why)
                }
                Ok(_) => {
                    let unneeded = self.holdings.remove_name(&name);
                    self.tell(Change::Forget { name: name.clone() }, Vec::new());
                    self.release(unneeded);
                    self.notify(&name);
                    self.promise(number, Answer::Done);
                    return None;
                }
                Err(refusal) => refusal,
            },
            Question::Pin { name, pinned } => match self.administrate(&name, token) {
                Ok(found) => {
                    found.pinned = pinned;
                    let change = Change::Name(Box::new(found.clone()));
                    self.tell(change, Vec::new());
                    self.promise(number, Answer::Done);
                    return None;
                }
                Err(refusal) => refusal,
            },
            Question::Status => Answer::Status(self.status()),
            Question::Stop => {
                let is_locked =
                    |name: &&Name| name.pinned || !name.tokens.allow(Right::Admin, token);
                match self.holdings.names().values().find(is_locked) {
                    Some(name) => refused(
                        HolderFault::Pinned,
                        format!(
                            "{} is pinned or has a token, so the holder stays",
                            name.name
                        ),
                    ),
                    None => Answer::Done,
                }
            }
        })
    }

    fn waiting(&self) -> usize {
        let waits = |program: &&Program| matches!(program.stage, Stage::Waiting { .. });
        self.connected.iter().filter(waits).count()
    }

    fn status(&self) -> Status {
        let successor = self.successor.as_ref();
        Status {
            pid: process::pid(),
            successor: successor.map(Successor::pid),
            is_safe: successor.is_some_and(Successor::has_all),
            takeovers: self.takeovers,
            names: self.holdings.names().len() as u64,
            bytes: self.holdings.bytes(),
        }
    }

    fn find(&self, name: &str) -> Result<&Name, Answer> {
        if let Err(error) = check_name(name) {
            return Err(refused(HolderFault::NoSuchName, error.to_string()));
        }
        self.holdings.names().get(name).ok_or_else(|| {
            let why =
                format!("nothing is held under the name {name}; `crosshandle ls` lists the names");
            refused(HolderFault::NoSuchName, why)
        })
    }

    fn open(&self, name: &str, access: Access, token: Option<&str>) -> Result<Entry, Answer> {
        let found = self.find(name)?;
        let right = match access {
            Access::ReadOnly => Right::Read,
            Access::ReadWrite => Right::Write,
        };
        match found.tokens.allow(right, token) {
            true => Ok(found.tell(Some(access))),
            false => Err(not_allowed(name)),
        }
    }

    fn administrate(&mut self, name: &str, token: Option<&str>) -> Result<&mut Name, Answer> {
        if !self.find(name)?.tokens.allow(Right::Admin, token) {
            return Err(not_allowed(name));
        }
        Ok(self.holdings.name_mut(name).expect("it was found"))
    }

    fn list(&self, after: Option<&str>) -> Answer {
        use std::ops::Bound;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut bytes = 0;
        let mut names = Vec::new();
        let mut rest = self
            .holdings
            .names()
            .range::<str, _>((start, Bound::Unbounded));
        for (_, name) in rest.by_ref() {
            let entry = name.tell(None);
            bytes += serde_json::to_vec(&entry).map_or(0, |text| text.len());
            names.push(entry);
            if bytes > LIST_BYTES {
                break;
            }
        }
        Answer::Listed {
            names,
            more: rest.next().is_some(),
        }
    }

    /// Returns why memory may not be held under a name.
    fn may_hold(&self, hold: &Hold, token: Option<&str>) -> Result<(), Answer> {
        if let Err(error) = hold.check() {
            return Err(refused(HolderFault::Refused, error.to_string()));
        }
        let name = &hold.name;
        match self.holdings.names().get(name) {
            None => Ok(()),
            Some(found) if !hold.replaces => Err(refused(
                HolderFault::NameTaken,
                format!(
                    "{name} is in use, by version {} of {} bytes; publish the next version, or take \
                     another name",
                    found.version,
                    found.bytes()
                ),
            )),
            Some(found) if found.pinned => {
                let why = format!("{name} is pinned; unpin it first");
                Err(refused(HolderFault::Pinned, why))
            }
            Some(found) if !found.tokens.allow(Right::Write, token) => Err(not_allowed(name)),
            Some(_) => Ok(()),
        }
    }

    /// Has the memory of a hand-over fetched in the background.
    fn hold(&mut self, number: u64, hold: Hold, token: Option<&str>) -> Option<Answer> {
        if let Err(refusal) = self.may_hold(&hold, token) {
            return Some(refusal);
        }
        if self.fetching >= MAX_FETCHES {
            let why = "as much memory as can be fetched at a time is being handed over; try again";
            return Some(refused(HolderFault::Refused, why.to_owned()));
        }
        let index = self.position(number)?;
        self.connected[index].stage = Stage::Fetching;
        self.fetching += 1;
        let origin = Origin {
            directory: Some(self.path.clone()),
            policy: self.terms.policy.clone(),
            timeout: FETCH_TIMEOUT,
        };
        // What a program hands over again, since it got no answer, is not its maker's any more.
        let records = self.holdings.records().values();
        let known: Vec<MemoryHandle> = records.map(|record| record.handle).collect();
        let (sender, wake) = (self.fetched.0.clone(), Arc::clone(&self.wake));
        let token = token.map(str::to_owned);
        background::run_blocking(move || {
            let records = fetch_all(&hold, &known, &origin);
            let fetched = Fetched {
                program: number,
                hold,
                token,
                records,
            };
            // It fails only if the holder has ended.
            let _ = sender.send(fetched);
            let _ = rustix::io::write(&*wake, &1_u64.to_ne_bytes());
        });
        None
    }

    fn take_fetched(&mut self) {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        while let Ok(fetched) = self.fetched.1.try_recv() {
            self.fetching -= 1;
            let (number, name) = (fetched.program, fetched.hold.name.clone());
            match self.keep(fetched) {
                Ok(version) => {
                    let answer = Answer::HandedOver {
                        version,
                        is_safe: false,
                    };
                    self.promise(number, answer);
                    self.notify(&name);
                }
                Err(refusal) => self.reply(number, &refusal),
            }
        }
    }

    /// Holds what was fetched. Returns the name's version.
    fn keep(&mut self, fetched: Fetched) -> Result<u64, Answer> {
        let Fetched {
            hold,
            token,
            records,
            ..
        } = fetched;
        // Again: another program may have been faster.
        self.may_hold(&hold, token.as_deref())?;
        let refuse = |error: Error| refused(HolderFault::Refused, error.to_string());
        let records = records.map_err(refuse)?;
        let before = self.holdings.names().get(&hold.name);
        let version = before.map_or(1, |before| before.version + 1);
        let mut added = Vec::new();
        let mut failed = None;
        for record in records {
            let key = super::state::key_of(&record.handle);
            let exporter = record.handle.fields().exporter;
            let (change, files) = Change::record(&record);
            let kept = (self.holdings.add_record(record))
                .and_then(|()| self.directory.answer_for(exporter));
            added.push(key);
            if let Err(error) = kept {
                failed = Some(error);
                break;
            }
            self.tell(change, files);
        }
        let name = Name::new(hold, version, process::time() / 1_000_000_000);
        let is_missing = |handle| {
            let found = self.holdings.records().get(&super::state::key_of(&handle));
            found.is_none_or(|record| record.handle != handle)
        };
        if failed.is_none() && name.handles().any(is_missing) {
            failed = Some(Error::Stale);
        }
        if let Some(error) = failed {
            self.release(added);
            return Err(refuse(error));
        }
        self.tell(Change::Name(Box::new(name.clone())), Vec::new());
        let unneeded = self.holdings.set_name(name);
        self.release(unneeded);
        Ok(version)
    }

    /// Holds records no more that no name needs.
    fn release(&mut self, keys: Vec<RecordKey>) {
        for key in keys {
            let Some(record) = self.holdings.records().get(&key) else {
                continue;
            };
            if record.names > 0 {
                continue;
            }
            let handle = record.handle.to_string();
            let last_of = self.holdings.remove_record(&key);
            self.tell(Change::Release { handle }, Vec::new());
            if let Some(exporter) = last_of {
                self.directory.leave(exporter);
            }
        }
    }

    /// Answers the programs that wait for another version of a name.
    fn notify(&mut self, changed: &str) {
        let mut due = Vec::new();
        for program in &self.connected {
            let Stage::Waiting {
                name,
                access,
                version,
                token,
            } = &program.stage
            else {
                continue;
            };
            if name != changed {
                continue;
            }
            match self.open(name, *access, token.as_deref()) {
                Ok(entry) if entry.version <= *version => {}
                Ok(entry) => due.push((program.number, Answer::Opened(entry))),
                Err(refusal) => due.push((program.number, refusal)),
            }
        }
        for (number, answer) in due {
            self.reply(number, &answer);
        }
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

fn access_of(writes: bool) -> Access {
    match writes {
        true => Access::ReadWrite,
        false => Access::ReadOnly,
    }
}

fn not_allowed(name: &str) -> Answer {
    let why = format!("{name} has a token, which was not shown; give it with --token");
    refused(HolderFault::NotAllowed, why)
}

/// Sends an answer. Returns whether that was possible.
fn send(stream: &PeerStream, answer: &Answer) -> bool {
    let text = serde_json::to_vec(answer).expect("plain data");
    socket::send(stream, &text, &[]).is_ok()
}

/// A socket that another program made may block.
fn set_nonblocking(socket: &OwnedFd) -> Result<()> {
    rustix::io::ioctl_fionbio(socket, true).map_err(Error::os("looking at the holder's socket"))
}

/// Fetches the records of a hand-over from their makers, but for those that are held already.
fn fetch_all(hold: &Hold, known: &[MemoryHandle], origin: &Origin) -> Result<Vec<Record>> {
    let deadline = Deadline::after(FETCH_TIMEOUT);
    let mut records = Vec::new();
    for part in &hold.parts {
        let (handle, read_only) = part.handles()?;
        let handle = handle.ok_or_else(|| Error::invalid("a part has no handle for writing"))?;
        let (fields, other) = (handle.fields(), read_only.fields());
        let is_pair = fields.exporter == other.exporter
            && fields.context == other.context
            && fields.segment == other.segment
            && fields.length == other.length
            && !fields.read_only
            && other.read_only;
        if !is_pair || fields.length != part.bytes {
            return Err(Error::invalid(format!(
                "the handles of the part {} are not of one piece of memory",
                part.role
            )));
        }
        if Credential::of(&fields).record.index >= MAX_HELD_INDEX
            || Credential::of(&other).record.index >= MAX_HELD_INDEX
        {
            return Err(Error::invalid(format!(
                "the maker shares more than {MAX_HELD_INDEX} objects in the context of the part {}: hand over \
                 memory of another context",
                part.role
            )));
        }
        for handle in [handle, read_only] {
            // The whole handle: a key alone may be one that somebody else was given.
            if known.contains(&handle) {
                continue;
            }
            records.push(Record {
                memory: fetch(&handle, origin, &deadline)?,
                handle,
                device: part.device.clone(),
                kind: part.kind,
                name: format!("{}/{}", hold.name, part.role),
                names: 0,
            });
        }
    }
    Ok(records)
}
