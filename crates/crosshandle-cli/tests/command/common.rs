//! Runs the real command with a deadline. If a process is late, it is killed and the test fails.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Maximum time for anything that a test waits for.
///
/// Commands take milliseconds. With much less, a test could fail on a busy machine. With more, a
/// hang is reported later.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// A directory for the files and sockets of a test, which is removed when dropped.
pub(crate) struct Sandbox {
    directory: PathBuf,
    sockets: PathBuf,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // The path is short, because the kernel limits the path of a socket.
        let directory = std::env::temp_dir().join(format!("xh-{}-{number}", std::process::id()));
        fs::create_dir_all(directory.join("s")).expect("a directory for the test");
        let sockets = directory.join("s");
        let sandbox = Self { directory, sockets };
        let mode = fs::Permissions::from_mode(0o700);
        fs::set_permissions(sandbox.sockets(), mode).expect("a directory of our own");
        sandbox
    }

    /// Returns a sandbox whose commands use the sockets of another directory.
    pub(crate) fn with_sockets(sockets: &Path) -> Self {
        let mut sandbox = Self::new();
        sandbox.sockets = sockets.to_owned();
        sandbox
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn sockets(&self) -> PathBuf {
        self.sockets.clone()
    }

    /// Returns the names of all entries in the socket directory.
    pub(crate) fn listed_sockets(&self) -> Vec<String> {
        fs::read_dir(self.sockets())
            .expect("the socket directory")
            .map(|entry| entry.expect("an entry").file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    }

    pub(crate) fn file(&self, name: &str, contents: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, contents).expect("a file for the test");
        path
    }

    pub(crate) fn command<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crosshandle"));
        command
            .args(arguments)
            .env("CROSSHANDLE_SOCKET_DIR", self.sockets());
        command
    }

    pub(crate) fn start<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Running {
        Running::start(self.command(arguments))
    }

    /// Runs a command until it ends.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Finished {
        self.start(arguments).finish()
    }

    /// Starts a command that prints a handle and holds its object. Returns the handle's text.
    pub(crate) fn hold<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> (Running, String) {
        let mut running = self.start(arguments);
        let handle = running.stdout.line();
        (running, handle)
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A process that is killed when dropped.
pub(crate) struct Running {
    child: Child,
    pub(crate) stdout: Stream,
    pub(crate) stderr: Stream,
}

impl Running {
    pub(crate) fn start(command: Command) -> Self {
        Self::start_with(command, Stdio::null())
    }

    /// Starts a process with this standard input.
    pub(crate) fn start_with(mut command: Command, input: impl Into<Stdio>) -> Self {
        let mut child = command
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let stdout = Stream::of(child.stdout.take().expect("piped"));
        let stderr = Stream::of(child.stderr.take().expect("piped"));
        Self {
            child,
            stdout,
            stderr,
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the process runs");
    }

    /// Waits until the process ends.
    pub(crate) fn finish(mut self) -> Finished {
        wait_for_end(self.pid());
        let status = self.child.wait().expect("it has ended");
        Finished {
            status,
            stdout: self.stdout.rest(),
            stderr: String::from_utf8(self.stderr.rest()).expect("text"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a process has ended. The process must not have been reaped.
pub(crate) fn wait_for_end(pid: Pid) {
    let process = pidfd_open(pid, PidfdFlags::empty()).expect("the process");
    let deadline = Instant::now() + STEP_TIMEOUT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("a short time");
        let mut descriptors = [PollFd::new(&process, PollFlags::IN)];
        match poll(&mut descriptors, Some(&left)) {
            Ok(0) => {
                let _ = kill_process(pid, Signal::KILL);
                panic!("process {pid:?} has not ended in time");
            }
            Ok(_) => return,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("waiting for {pid:?}: {error}"),
        }
    }
}

/// The exit status of a process, and its output.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Finished {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("text")
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).expect("JSON")
    }

    /// Returns the exit code, or `None` if a signal ended the process.
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Checks the exit code. After a failure, the last line on standard error must give the reason.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(
            self.status.code(),
            Some(code),
            "signal {:?}, stderr: {}",
            self.status.signal(),
            self.stderr
        );
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        if matches!(code, 1 | 3 | 4) {
            let last = self.stderr.lines().last().unwrap_or_default();
            assert!(last.starts_with("crosshandle: "), "{}", self.stderr);
        }
        self
    }
}

/// The output of a process, which can be read while the process runs.
pub(crate) struct Stream {
    chunks: Receiver<Vec<u8>>,
    received: Vec<u8>,
}

impl Stream {
    fn of(mut source: impl Read + Send + 'static) -> Self {
        let (sender, chunks) = channel();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(count @ 1..) = source.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    // Sending fails if the stream was dropped. The pipe closes when this thread
                    // ends.
                    return;
                }
            }
        });
        Self {
            chunks,
            received: Vec::new(),
        }
    }

    /// Waits for the next line. Returns it without the newline.
    pub(crate) fn line(&mut self) -> String {
        let deadline = Instant::now() + STEP_TIMEOUT;
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let rest = self.received.split_off(end + 1);
                let line = std::mem::replace(&mut self.received, rest);
                return String::from_utf8(line).expect("text").trim_end().into();
            }
            assert!(self.more(deadline), "the output ends without another line");
        }
    }

    /// Waits until the process closes its output. Returns everything that was not read before.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let deadline = Instant::now() + STEP_TIMEOUT;
        while self.more(deadline) {}
        std::mem::take(&mut self.received)
    }

    fn more(&mut self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.chunks.recv_timeout(left) {
            Ok(chunk) => {
                self.received.extend(chunk);
                true
            }
            Err(RecvTimeoutError::Disconnected) => false,
            Err(RecvTimeoutError::Timeout) => panic!("no output in time"),
        }
    }
}

/// Returns bytes that do not repeat soon.
pub(crate) fn contents(len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|index| (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
        .collect()
}

/// Converts a path to an argument of a command.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("our paths are text")
}
