//! Peers: other processes that the suite controls.

use crate::failure::Failure;
use crate::harness::{Harness, deadline, eventually};
use crate::procfs::{self, Usage};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The options for starting a peer.
#[derive(Clone, Default)]
pub struct PeerOptions {
    user: Option<u32>,
    variables: Vec<(OsString, OsString)>,
    without_directory: bool,
    wrapper: Vec<String>,
}

impl PeerOptions {
    /// Returns options for a peer of this process's user, in the case's socket directory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts the peer as another user.
    pub fn user(mut self, id: u32) -> Self {
        self.user = Some(id);
        self
    }

    /// Sets an environment variable for the peer.
    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Omits the case's socket directory from the options of the peer's contexts.
    pub fn without_directory(mut self) -> Self {
        self.without_directory = true;
        self
    }

    /// Starts the peer through another program, such as `unshare --pid`.
    pub fn wrapper(mut self, words: &[&str]) -> Self {
        self.wrapper = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }
}

/// An error that a peer's command returned.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Name of the error's variant.
    pub kind: String,
    /// Text of the error.
    pub message: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a peer got {}: {}", self.kind, self.message)
    }
}

impl std::error::Error for Refused {}

/// The reply of a peer, which consists of words or is an error.
pub type Reply = Result<Vec<String>, Refused>;

#[derive(Default)]
struct Inbox {
    replies: HashMap<u64, Reply>,
    /// The threads that execute requests, by the number of the request.
    begun: HashMap<u64, u32>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    inbox: Mutex<Inbox>,
    changed: Condvar,
    complaints: Mutex<String>,
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, line: &str) {
        let mut words = line.split(' ');
        let number = words.next().and_then(|word| word.parse().ok());
        let mut inbox = self.inbox();
        match (number, words.next()) {
            (Some(number), Some("ok")) => {
                let words = words.map(str::to_owned).collect();
                inbox.replies.insert(number, Ok(words));
            }
            (Some(number), Some("err")) => {
                let kind = words.next().unwrap_or_default().to_owned();
                let message = words.collect::<Vec<_>>().join(" ");
                inbox.replies.insert(number, Err(Refused { kind, message }));
            }
            (Some(number), Some("begun")) => {
                let thread = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
                inbox.begun.insert(number, thread);
            }
            _ => {}
        }
        drop(inbox);
        self.changed.notify_all();
    }
}

/// A process that executes commands of the suite. It is killed on drop.
pub struct Peer {
    child: Mutex<Child>,
    pid: u32,
    input: Mutex<Option<ChildStdin>>,
    shared: Arc<Shared>,
    next: AtomicU64,
}

/// A request whose reply has not arrived yet.
#[must_use]
pub struct Pending<'a> {
    peer: &'a Peer,
    number: u64,
    question: String,
}

impl Peer {
    pub(crate) fn start(harness: &Harness, options: PeerOptions) -> Result<Self, Failure> {
        let program = match options.user {
            // Another user may not have access to the directory where the suite was built.
            Some(_) => harness.public_program()?,
            None => harness.program().to_owned(),
        };
        let mut words = options.wrapper.into_iter();
        let mut command = match words.next() {
            None => Command::new(program),
            Some(wrapper) => {
                let mut command = Command::new(wrapper);
                command.args(words).arg(program);
                command
            }
        };
        command.arg(harness.peer_device_name());
        if !options.without_directory {
            command.arg(harness.directory());
        }
        command.envs(options.variables);
        if let Some(user) = options.user {
            command.uid(user).gid(user);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::new(format!("starting {command:?}: {error}")))?;
        let shared = Arc::new(Shared::default());
        let output = child.stdout.take().ok_or(Failure::new("no output"))?;
        let errors = child.stderr.take().ok_or(Failure::new("no errors"))?;
        let input = child.stdin.take();
        let listener = Arc::clone(&shared);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                listener.take(&line);
            }
            listener.inbox().closed = true;
            listener.changed.notify_all();
        });
        let listener = Arc::clone(&shared);
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                let complaints = &listener.complaints;
                let mut text = complaints.lock().unwrap_or_else(PoisonError::into_inner);
                text.push_str(&line);
                text.push('\n');
            }
        });
        Ok(Self {
            pid: child.id(),
            child: Mutex::new(child),
            input: Mutex::new(input),
            shared,
            next: AtomicU64::new(1),
        })
    }

    /// Returns the process ID of the peer or of its wrapper.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Executes a command in the peer, and waits for the reply.
    ///
    /// # Errors
    /// Fails with the command's error, and if the peer is late or has ended.
    #[track_caller]
    pub fn ask(&self, question: impl fmt::Display) -> Reply {
        self.start_asking(&question.to_string(), "")
            .reply(deadline())
    }

    /// Executes a command on a separate thread of the peer.
    pub fn begin(&self, question: impl fmt::Display) -> Pending<'_> {
        self.start_asking(&question.to_string(), "&")
    }

    /// Executes a command on a separate thread of the peer, and waits until that thread sleeps.
    ///
    /// # Errors
    /// Fails if the thread does not fall asleep.
    #[track_caller]
    pub fn begin_and_sleep(&self, question: impl fmt::Display) -> Result<Pending<'_>, Failure> {
        let pending = self.begin(question);
        let thread = pending.begun()?;
        eventually("a peer falls asleep", || {
            Ok(procfs::is_asleep(self.pid, thread)?)
        })?;
        Ok(pending)
    }

    /// Executes a command that must fail with this kind of error.
    ///
    /// # Errors
    /// Fails if the command succeeds, or fails with another error.
    #[track_caller]
    pub fn refused(&self, question: impl fmt::Display, kind: &str) -> Result<Refused, Failure> {
        let question = question.to_string();
        match self.ask(&question) {
            Err(refused) if refused.kind == kind => Ok(refused),
            Err(refused) => Err(Failure::new(format!(
                "{question:?} should be refused with {kind}, but {refused}"
            ))),
            Ok(words) => Err(Failure::new(format!(
                "{question:?} should be refused with {kind}, but the answer is {words:?}"
            ))),
        }
    }

    fn start_asking(&self, question: &str, mark: &str) -> Pending<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(input) = &mut *input {
            // If the peer has ended, the reply says so.
            let _ = input.write_all(format!("{mark}{number} {question}\n").as_bytes());
        }
        Pending {
            peer: self,
            number,
            question: question.to_owned(),
        }
    }

    /// Returns the resources that the peer holds.
    ///
    /// # Errors
    /// Fails if the peer has ended.
    #[track_caller]
    pub fn usage(&self) -> Result<Usage, Failure> {
        Ok(Usage::of(self.pid)?)
    }

    pub(crate) fn send(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid as i32) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills the peer with SIGKILL, and waits until it has ended. Returns the time when the signal
    /// was sent.
    pub fn kill(&self) -> Instant {
        let sent = Instant::now();
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
        sent
    }

    /// Waits until the peer exits.
    ///
    /// # Errors
    /// Fails if it does not end in time.
    #[track_caller]
    pub fn ended(&self) -> Result<ExitStatus, Failure> {
        let mut status = None;
        eventually("a peer ends", || {
            let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
            status = child.try_wait()?;
            Ok(status.is_some())
        })?;
        status.ok_or_else(|| Failure::new("no status"))
    }

    /// Returns the number of the signal that ended the peer.
    ///
    /// # Errors
    /// Fails if the peer has not ended, or has exited normally.
    #[track_caller]
    pub(crate) fn ended_by_signal(&self) -> Result<i32, Failure> {
        let status = self.ended()?;
        status
            .signal()
            .ok_or_else(|| Failure::new(format!("it ended with {status}")))
    }

    /// Returns the peer's output on standard error.
    pub(crate) fn complaints(&self) -> String {
        let complaints = &self.shared.complaints;
        let text = complaints.lock().unwrap_or_else(PoisonError::into_inner);
        text.trim().to_owned()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Pending<'_> {
    fn wait<T>(
        &self,
        limit: Duration,
        mut look: impl FnMut(&mut Inbox) -> Option<T>,
    ) -> Result<T, Refused> {
        let end = Instant::now() + limit;
        let mut inbox = self.peer.shared.inbox();
        loop {
            if let Some(found) = look(&mut inbox) {
                return Ok(found);
            }
            let left = end.saturating_duration_since(Instant::now());
            let kind = match (inbox.closed, left.is_zero()) {
                (true, _) => "Ended",
                (false, true) => "Late",
                (false, false) => {
                    let changed = &self.peer.shared.changed;
                    (inbox, _) = changed
                        .wait_timeout(inbox, left)
                        .unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
            };
            drop(inbox);
            if kind == "Late" {
                self.peer.kill();
            }
            return Err(Refused {
                kind: kind.to_owned(),
                message: format!(
                    "no answer to {:?} within {limit:?}; it said: {}",
                    self.question,
                    self.peer.complaints()
                ),
            });
        }
    }

    /// Waits for the reply, for at most `limit`.
    ///
    /// # Errors
    /// Fails with the command's error, with `Late` (after killing the peer) or with `Ended`.
    pub fn reply(self, limit: Duration) -> Reply {
        self.wait(limit, |inbox| inbox.replies.remove(&self.number))?
    }

    /// Waits until a thread executes the command, and returns the ID of that thread.
    ///
    /// # Errors
    /// Fails as [`reply`](Self::reply) does.
    pub fn begun(&self) -> Result<u32, Refused> {
        self.wait(deadline(), |inbox| inbox.begun.remove(&self.number))
    }

    /// Returns whether the reply has arrived.
    pub fn is_answered(&self) -> bool {
        self.peer.shared.inbox().replies.contains_key(&self.number)
    }
}
