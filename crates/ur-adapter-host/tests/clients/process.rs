//! Runs programs with a time limit, and prints the output of programs that fail.

use crate::runtime::{Runtime, Setting};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time limit for a client. It is a little longer than the limit in the clients, so that a late
/// client can report what it waits for.
const DEADLINE: Duration = Duration::from_secs(60);

/// Time limit for the tests of dpctl. It is below the limit of the test runner.
const LONG_DEADLINE: Duration = Duration::from_secs(170);

/// A client program that is ready to start with the adapter.
pub(crate) struct Program {
    command: Command,
    directory: Directory,
    deadline: Duration,
}

impl Program {
    pub(crate) fn new(path: &Path, runtime: &Runtime) -> Self {
        let directory = Directory::new();
        let mut command = Command::new(path);
        command
            .env("LD_LIBRARY_PATH", &runtime.libraries)
            .env("UR_ADAPTERS_FORCE_LOAD", &runtime.adapter)
            .env("CROSSHANDLE_SOCKET_DIR", &directory.path)
            .env_remove("CROSSHANDLE_UR_BACKEND")
            .env_remove("ONEAPI_DEVICE_SELECTOR")
            .env_remove("UR_ENABLE_LAYERS")
            .env_remove("UR_ENABLE_LOADER_INTERCEPT");
        Self {
            command,
            directory,
            deadline: DEADLINE,
        }
    }

    /// Raises the client's time limit to that of the tests of dpctl.
    pub(crate) fn takes_long(&mut self) {
        self.deadline = LONG_DEADLINE;
    }

    pub(crate) fn set(&mut self, setting: Setting) {
        if setting.intercepted {
            self.variable("UR_ENABLE_LOADER_INTERCEPT", "1");
        }
        if setting.validated {
            self.variable("UR_ENABLE_LAYERS", "UR_LAYER_FULL_VALIDATION");
        }
    }

    pub(crate) fn variable(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.command.env(name, value);
    }

    pub(crate) fn argument(&mut self, argument: impl AsRef<OsStr>) {
        self.command.arg(argument);
    }

    /// Returns the socket directory through which other processes connect to the client's
    /// exporters.
    pub(crate) fn socket_directory(&self) -> &Path {
        &self.directory.path
    }

    /// Runs the client to completion. Panics if the client fails or exceeds its time limit.
    pub(crate) fn run(self) {
        self.start(Stdio::null(), None).end();
    }

    /// Starts the client. Its standard error goes to a log file, and so does its standard output
    /// unless `output` is given.
    pub(crate) fn start(mut self, input: impl Into<Stdio>, output: Option<Stdio>) -> Running {
        let log = self.directory.path.join("printed");
        let errors = File::create(&log).expect("a file");
        let output = output.unwrap_or_else(|| errors.try_clone().expect("a descriptor").into());
        self.command.stdin(input).stdout(output).stderr(errors);
        let child = self.command.spawn();
        let child = child.unwrap_or_else(|error| panic!("cannot run {:?}: {error}", self.command));
        // The command holds this process's copies of the pipe ends. If they stayed open, the other
        // process would not see the end of the pipe.
        drop(self.command);
        Running {
            child,
            deadline: Instant::now() + self.deadline,
            allowed: self.deadline,
            log,
            _directory: self.directory,
        }
    }
}

/// Runs two programs, each of which reads the standard output of the other. Returns their standard
/// error outputs.
pub(crate) fn run_in_a_loop(first: Program, mut second: Program) -> (String, String) {
    let (first_in, second_out) = io::pipe().expect("a pipe");
    let (second_in, first_out) = io::pipe().expect("a pipe");
    // Both programs use one socket directory, like all processes of a user.
    second.variable("CROSSHANDLE_SOCKET_DIR", first.socket_directory());
    let first = first.start(first_in, Some(first_out.into()));
    let second = second.start(second_in, Some(second_out.into()));
    (first.end(), second.end())
}

/// A running client. Dropping it kills the process, so that the process cannot outlive its test.
pub(crate) struct Running {
    child: Child,
    deadline: Instant,
    allowed: Duration,
    log: PathBuf,
    _directory: Directory,
}

impl Running {
    /// Waits until the process exits, and returns its logged output. Panics if the process fails or
    /// exceeds its time limit.
    pub(crate) fn end(mut self) -> String {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("a short time");
        let ended = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty());
        let ended = ended.expect("its descriptor");
        let ready = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&left)).expect("a wait");
        let status = (ready > 0).then(|| self.child.wait().expect("our child"));
        let printed = fs::read(&self.log).unwrap_or_default();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        match status {
            Some(status) if status.success() => printed,
            Some(status) => panic!("it failed ({status}) and printed:\n{printed}"),
            None => panic!(
                "it was killed after {:?} and had printed:\n{printed}",
                self.allowed
            ),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory for the sockets and the log of one program. Its name is short, because the length of
/// socket paths is limited.
struct Directory {
    path: PathBuf,
}

impl Directory {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("xh-ur-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let created = DirBuilder::new().mode(0o700).create(&path);
        created.expect("a directory");
        Self { path }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
