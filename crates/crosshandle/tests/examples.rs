//! Runs every example as a newcomer would. Each example checks its own results.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Timeout of an example in seconds, far longer than any example needs.
const DEADLINE: i64 = 120;

#[test]
fn every_example_succeeds() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut names: Vec<String> = fs::read_dir(sources)
        .expect("the examples")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension() == Some(OsStr::new("rs")))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    assert!(names.len() >= 6, "{names:?}");
    for name in names {
        let output = run(&name);
        assert!(output.lines().count() >= 2, "{name} says little: {output}");
    }
}

/// Runs an example to its end, and returns its output.
fn run(name: &str) -> String {
    let program = built(name);
    assert!(
        program.exists(),
        "{} is not built; run `cargo build --package crosshandle --examples` first",
        program.display()
    );
    let sockets = Directory::new();
    let child = Command::new(program)
        .env("CROSSHANDLE_SOCKET_DIR", &sockets.0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the example starts");
    let mut child = Killed(child);
    let ended = pidfd_open(Pid::from_child(&child.0), PidfdFlags::empty()).expect("its descriptor");
    let deadline = Timespec {
        tv_sec: DEADLINE,
        tv_nsec: 0,
    };
    // The examples print far less than a pipe can store.
    let ready = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&deadline));
    assert_eq!(ready.expect("a wait"), 1, "{name} is late");
    let status = child.0.wait().expect("it has ended");
    let output = child.0.stdout.take().expect("piped");
    let output = std::io::read_to_string(output).expect("text");
    assert!(status.success(), "{name}: {status}\n{output}");
    output
}

/// Returns the path of an example, which Cargo builds next to the directory of the tests.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let profile = test.parent().and_then(Path::parent).expect("a directory");
    profile.join("examples").join(name)
}

/// A child that is killed at the end of its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A temporary directory for sockets.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("xh-examples-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(&path, mode).expect("a directory of our own");
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
