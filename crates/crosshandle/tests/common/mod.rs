//! Helpers of the tests: a directory for sockets, and second processes with deadlines.
//!
//! A second process runs the same test again, and a variable tells it its role. It exchanges lines
//! with its parent over a socket that is its standard input, and ends when its parent does.

use crosshandle::{Context, ContextOptions, Device};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Timeout of a step, far longer than any step needs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
const ROLE: &str = "CROSSHANDLE_TEST_ROLE";
const ALONE: &str = "alone";

/// Returns whether [`Process::start`] started this process in this role.
pub(crate) fn is(role: &str) -> bool {
    std::env::var_os(ROLE).is_some_and(|own| own == role)
}

/// Runs `body` in its own process. This is for tests that count or limit something per process, or
/// that may block the whole process. `test` is the name of the calling test.
pub(crate) fn alone(test: &str, body: impl FnOnce(&Directory)) {
    if is(ALONE) {
        body(&Directory::inherited());
        return Parent::new().say("done");
    }
    let directory = Directory::new();
    let mut process = Process::start(test, ALONE, &directory);
    assert_eq!(process.hear(), "done");
    process.end();
}

/// A directory for sockets that only this test uses.
pub(crate) struct Directory {
    path: PathBuf,
    is_ours: bool,
}

impl Directory {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("xh-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a directory");
        let directory = Self {
            path,
            is_ours: true,
        };
        directory.set_mode(0o700);
        directory
    }

    /// Wraps a directory that another value removes.
    pub(crate) fn of(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            is_ours: false,
        }
    }

    /// Returns the directory that the parent created.
    pub(crate) fn inherited() -> Self {
        let path = std::env::var_os(crosshandle::report::SOCKET_DIR_VARIABLE).expect("a directory");
        Self {
            path: path.into(),
            is_ours: false,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn set_mode(&self, mode: u32) {
        fs::set_permissions(&self.path, fs::Permissions::from_mode(mode)).expect("a mode");
    }

    /// Returns options for a context that uses this directory.
    pub(crate) fn options(&self) -> ContextOptions {
        ContextOptions::new().socket_dir(&self.path)
    }

    /// Creates a context that uses this directory.
    pub(crate) fn context(&self) -> Context {
        context(self.options())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Creates a context on the host.
pub(crate) fn context(options: ContextOptions) -> Context {
    let device = Device::find("host").expect("there is always a host");
    Context::with_options(&device, options).expect("a context")
}

/// A second process, which is killed at the end of its test.
pub(crate) struct Process {
    child: Child,
    link: BufReader<UnixStream>,
}

impl Process {
    /// Runs `test` of this program again in the role `role`, with `directory` as its default socket
    /// directory.
    pub(crate) fn start(test: &str, role: &str, directory: &Directory) -> Self {
        Self::start_by(&[], test, role, directory)
    }

    /// Starts the process through another command, for example a wrapper that sets limits. The
    /// command must replace itself by the program that its arguments name.
    pub(crate) fn start_by(by: &[&str], test: &str, role: &str, directory: &Directory) -> Self {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        ours.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        let program = std::env::current_exe().expect("this program");
        let mut command = match by {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        let child = command
            .args([
                test,
                "--exact",
                "--include-ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, role)
            .env(crosshandle::report::SOCKET_DIR_VARIABLE, directory.path())
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .expect("a second process");
        let link = BufReader::new(ours);
        Self { child, link }
    }

    /// Returns the next line from the process.
    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        let read = self.link.read_line(&mut line);
        read.unwrap_or_else(|error| panic!("the other process is late: {error}"));
        assert!(line.ends_with('\n'), "the other process ended: {line:?}");
        line.trim_end().to_owned()
    }

    /// Sends a line to the process.
    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.link.get_mut(), "{line}").expect("it listens");
    }

    /// Returns the process number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops the process with `SIGSTOP`, and returns when it has stopped.
    pub(crate) fn stop(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).expect("a stop");
        let state = waitpid(Some(pid), WaitOptions::UNTRACED).expect("our child");
        assert!(state.is_some_and(|(_, status)| status.stopped()));
    }

    /// Continues the process after [`stop`](Self::stop).
    pub(crate) fn resume(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).expect("it continues");
    }

    /// Kills the process, and returns when it is dead.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("a kill");
        self.child.wait().expect("our child");
    }

    /// Kills the process, and returns when it is dead. Its forked children live until this value is
    /// dropped.
    pub(crate) fn kill_alone(&mut self) {
        self.child.kill().expect("a kill");
        self.child.wait().expect("our child");
    }

    /// Waits for the process to end, and checks that it succeeded.
    pub(crate) fn end(mut self) {
        let ended = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty());
        let ended = ended.expect("its descriptor");
        let deadline = Timespec::try_from(DEADLINE).expect("a short time");
        let ready = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&deadline));
        assert_eq!(ready.expect("a wait"), 1, "the other process does not end");
        let status = self.child.wait().expect("our child");
        assert!(status.success(), "the other process: {status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The second process's end of the link to its parent.
pub(crate) struct Parent(BufReader<UnixStream>);

impl Parent {
    pub(crate) fn new() -> Self {
        let link = std::io::stdin().as_fd().try_clone_to_owned();
        Self(BufReader::new(link.expect("a descriptor").into()))
    }

    /// Sends a line to the parent.
    pub(crate) fn say(&mut self, line: impl std::fmt::Display) {
        writeln!(self.0.get_mut(), "{line}").expect("the parent listens");
    }

    /// Returns the parent's next line, or `None` when the parent has closed the link and this
    /// process must end.
    pub(crate) fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.0.read_line(&mut line).expect("text");
        (read > 0).then(|| line.trim_end().to_owned())
    }

    /// Waits until the parent closes the link.
    pub(crate) fn wait(mut self) {
        while self.hear().is_some() {}
    }
}

/// Opens files until only `free` descriptors are left below a limit of 64. Dropping a file frees
/// its descriptor.
pub(crate) fn take_descriptors(free: usize) -> Vec<fs::File> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = Rlimit {
        current: Some(64),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    setrlimit(Resource::Nofile, limit).expect("a lower limit");
    let mut taken = Vec::new();
    while let Ok(file) = fs::File::open("/dev/null") {
        taken.push(file);
    }
    taken.truncate(taken.len() - free);
    taken
}
