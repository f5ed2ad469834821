//! A process with several copies, and the commands that it receives.

use crate::common::{DEADLINE, Directory, Parent, Process, is};
use crate::copy::{self, Copies};
use crate::filter;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

/// A process with several copies.
pub(crate) struct Peer(Process);

impl Peer {
    /// Starts a process that runs `test` again. The test must call [`serve`] there.
    pub(crate) fn start(test: &str, directory: &Directory) -> Self {
        Self(Process::start(test, PEER, directory))
    }

    /// Starts a process in which close_range(2) is refused.
    pub(crate) fn start_filtered(test: &str, directory: &Directory) -> Self {
        Self(Process::start(test, FILTERED, directory))
    }

    /// Kills the process, and returns when it is dead.
    pub(crate) fn kill(self) {
        self.0.kill();
    }

    /// Sends a command to a copy, and returns the copy's reply.
    pub(crate) fn ask(&mut self, copy: usize, line: &str) -> String {
        self.0.say(&format!("{copy} {line}"));
        self.0.hear()
    }

    /// Sends a command to a copy, and checks that it succeeds.
    pub(crate) fn tell(&mut self, copy: usize, line: &str) {
        let answer = self.ask(copy, line);
        assert_eq!(answer, "ok", "copy {copy}: {line}");
    }

    /// Forks a child that lives until it is killed.
    pub(crate) fn fork(&mut self) -> Forked {
        Forked(self.ask(0, "fork").parse().expect("its number"))
    }

    /// Returns the number of open descriptors of the process, without those of its liveness
    /// threads.
    pub(crate) fn descriptors(&self) -> usize {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.0.id()));
        entries.expect("procfs").count()
    }

    /// Returns the directories in `/proc` of the liveness threads. Each copy has one thread.
    pub(crate) fn liveness_threads(&self) -> Vec<PathBuf> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0.id())).expect("procfs");
        let paths = tasks.flatten().map(|task| task.path());
        let is_liveness = |path: &PathBuf| {
            fs::read_to_string(path.join("comm")).is_ok_and(|name| name == "xh-liveness\n")
        };
        paths.filter(is_liveness).collect()
    }

    /// Returns the number of descriptors of the liveness threads.
    pub(crate) fn locked(&self) -> usize {
        let count = |path: PathBuf| fs::read_dir(path.join("fd")).expect("procfs").count();
        self.liveness_threads().into_iter().map(count).sum()
    }

    /// Waits until the liveness threads have this number of descriptors. A lock is released shortly
    /// after its object.
    pub(crate) fn await_locked(&self, number: usize) {
        eventually("the locks end", || self.locked() == number);
    }
}

/// A child of a peer, which is killed at the end of its test.
pub(crate) struct Forked(i32);

impl Drop for Forked {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.0) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

const PEER: &str = "peer";
const FILTERED: &str = "filtered";

/// Executes the commands of a peer, if this process is one. Returns whether it is.
pub(crate) fn serve() -> bool {
    if is(FILTERED) {
        filter::forbid_close_range();
    } else if !is(PEER) {
        return false;
    }
    let mut copies = Copies::default();
    let mut parent = Parent::new();
    while let Some(line) = parent.hear() {
        let (number, line) = line.split_once(' ').expect("a copy and what it shall do");
        let answer = match line {
            "fork" => copy::fork_and_stay().to_string(),
            line => copies.act(number.parse().expect("a number"), line),
        };
        parent.say(answer);
    }
    true
}

/// Waits until a condition becomes true.
pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not in time");
        std::thread::yield_now();
    }
}
