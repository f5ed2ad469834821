//! Workers: the processes of a workload. The supervisor grants their steps one by one.

use super::filter;
use crate::failure::Failure;
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, open, seek};
use rustix::io::{Errno, IoSliceMut, pread};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, kill_process};
use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Bytes to read of a thread's `stat` file. The state follows the thread's number and name.
const STAT_START: usize = 64;
/// Size in bytes of the buffer for directory entries of threads.
const ENTRIES: usize = 4096;

/// The answer to a request: its words, or the kind and text of an error.
pub(super) type Reply = Result<Vec<String>, (String, String)>;

/// A process of a workload. Killed on drop.
pub(super) struct Worker {
    pub(super) name: char,
    pub(super) pid: i32,
    child: Child,
    socket: UnixStream,
    errors: ChildStderr,
    listener: Option<OwnedFd>,
    input: Vec<u8>,
    complaints: Vec<u8>,
    answers: HashMap<u64, (Reply, Instant)>,
    /// Threads that execute requests, by the number of the request.
    begun: HashMap<u64, i32>,
    /// Names of the worker's threads.
    roles: HashMap<i32, String>,
    /// Directory of the worker's threads. It and their states are read before each step.
    tasks: OwnedFd,
    states: RefCell<HashMap<i32, OwnedFd>>,
    program: String,
    pub(super) has_ended: bool,
    pub(super) is_stopped: bool,
}

impl Worker {
    /// Starts a worker. The caller must call [`Worker::meet`] next.
    pub(super) fn start(
        name: char,
        program: &Path,
        device: &str,
        directory: &Path,
        is_filtered: bool,
    ) -> Result<Self, Failure> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(program);
        command.arg(device).arg(directory);
        command.env("RUST_BACKTRACE", "0");
        if is_filtered {
            command.env(filter::VARIABLE, "1");
        }
        let mut child = command
            .stdin(Stdio::from(OwnedFd::from(theirs.try_clone()?)))
            .stdout(Stdio::from(OwnedFd::from(theirs)))
            .stderr(Stdio::piped())
            .spawn()?;
        drop(command);
        let pid = child.id() as i32;
        let errors = child.stderr.take().ok_or(Failure::new("no errors"))?;
        ours.set_read_timeout(Some(Duration::from_secs(20)))?;
        rustix::io::ioctl_fionbio(&errors, true)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let tasks = open(format!("/proc/{pid}/task"), flags, Mode::empty())?;
        // The kernel truncates the name to this length.
        let program = program.file_name().unwrap_or_default().to_string_lossy();
        let program = program.chars().take(15).collect();
        Ok(Self {
            name,
            pid,
            child,
            socket: ours,
            errors,
            listener: None,
            input: Vec::new(),
            complaints: Vec::new(),
            answers: HashMap::new(),
            begun: HashMap::new(),
            roles: HashMap::from([(pid, "main".to_owned())]),
            tasks,
            states: RefCell::default(),
            program,
            has_ended: false,
            is_stopped: false,
        })
    }

    /// Receives the filter's listener from a worker whose steps are counted.
    pub(super) fn meet(&mut self, is_filtered: bool) -> Result<(), Failure> {
        if is_filtered {
            let listener = listener(&self.socket)?;
            filter::wake_on_this_processor(listener.as_fd());
            self.listener = Some(listener);
        }
        Ok(self.socket.set_nonblocking(true)?)
    }

    pub(super) fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a request. If the worker has ended, no answer arrives.
    pub(super) fn send(&mut self, number: u64, is_threaded: bool, command: &str) {
        let mark = if is_threaded { "&" } else { "" };
        let _ = self
            .socket
            .write_all(format!("{mark}{number} {command}\n").as_bytes());
    }

    /// Reads the worker's output so far.
    pub(super) fn read(&mut self) {
        let mut bytes = [0; 4096];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => {
                    self.has_ended = true;
                    break;
                }
                Ok(count) => self.input.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.has_ended = true;
                    break;
                }
            }
        }
        while let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            self.take(String::from_utf8_lossy(&line).trim_end());
        }
        if self.has_ended {
            self.listener = None;
        }
    }

    fn take(&mut self, line: &str) {
        let mut words = line.split(' ');
        let Some(number) = words.next().and_then(|word| word.parse().ok()) else {
            return;
        };
        let answer = match words.next() {
            Some("ok") => Ok(words.map(str::to_owned).collect()),
            Some("err") => {
                let kind = words.next().unwrap_or_default().to_owned();
                Err((kind, words.collect::<Vec<_>>().join(" ")))
            }
            Some("begun") => {
                if let Some(thread) = words.next().and_then(|word| word.parse().ok()) {
                    self.begun.insert(number, thread);
                }
                return;
            }
            _ => return,
        };
        self.answers.insert(number, (answer, Instant::now()));
    }

    pub(super) fn is_answered(&self, number: u64) -> bool {
        self.answers.contains_key(&number)
    }

    /// Returns whether a request has been answered without an error.
    pub(super) fn has_succeeded(&self, number: u64) -> bool {
        matches!(self.answers.get(&number), Some((Ok(_), _)))
    }

    pub(super) fn answer(&mut self, number: u64) -> Option<(Reply, Instant)> {
        self.answers.remove(&number)
    }

    /// Returns the thread that executes a request.
    pub(super) fn thread(&self, number: u64) -> Option<i32> {
        self.begun.get(&number).copied()
    }

    /// Returns the worker's output to standard error.
    pub(super) fn complaints(&mut self) -> String {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = self.errors.read(&mut bytes) {
            self.complaints.extend_from_slice(&bytes[..count]);
        }
        String::from_utf8_lossy(&self.complaints).trim().to_owned()
    }

    /// Returns the role of a thread. The role is the thread's name without its number.
    pub(super) fn role(&mut self, thread: i32) -> String {
        if let Some(role) = self.roles.get(&thread) {
            return role.clone();
        }
        let comm = fs::read_to_string(format!("/proc/{}/task/{thread}/comm", self.pid));
        let comm = comm.unwrap_or_default().trim_end().to_owned();
        // A new thread has the name of its starter until it sets its own name.
        if comm.is_empty() || comm == self.program {
            return "new".to_owned();
        }
        self.roles.insert(thread, comm.clone());
        comm
    }

    pub(super) fn forget_thread(&mut self, thread: i32) {
        self.roles.remove(&thread);
    }

    /// Returns the state letter of a thread, or `None` if the thread has ended.
    pub(super) fn state(&self, thread: i32) -> Option<u8> {
        let mut states = self.states.borrow_mut();
        let file = match states.entry(thread) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let path = format!("/proc/{}/task/{thread}/stat", self.pid);
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                entry.insert(open(path, flags, Mode::empty()).ok()?)
            }
        };
        let mut bytes = [0; STAT_START];
        let Ok(count @ 1..) = pread(file, &mut bytes, 0) else {
            states.remove(&thread);
            return None;
        };
        let end = bytes[..count].iter().rposition(|byte| *byte == b')')?;
        bytes.get(end + 2).copied()
    }

    pub(super) fn threads(&self) -> Vec<i32> {
        let mut threads = Vec::new();
        if seek(&self.tasks, SeekFrom::Start(0)).is_err() {
            return threads;
        }
        let mut space = [MaybeUninit::uninit(); ENTRIES];
        let mut entries = RawDir::new(&self.tasks, &mut space);
        while let Some(Ok(entry)) = entries.next() {
            threads.extend(
                entry
                    .file_name()
                    .to_str()
                    .ok()
                    .and_then(|name| name.parse::<i32>().ok()),
            );
        }
        threads
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills the worker and waits until it has ended.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.read();
        self.has_ended = true;
        self.listener = None;
    }

    /// Closes the worker's input, so that the worker ends by itself.
    pub(super) fn hang_up(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }

    pub(super) fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Receives the listener of a worker's filter.
pub(super) fn listener(socket: &UnixStream) -> Result<OwnedFd, Failure> {
    let mut bytes = [0; 9];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    loop {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        match recvmsg(socket, &mut parts, &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(Failure::new(format!("a worker's listener: {error}"))),
            Ok(_) => break,
        }
    }
    let rights = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    rights.ok_or_else(|| Failure::new("a worker sent no listener: does the kernel have seccomp?"))
}
