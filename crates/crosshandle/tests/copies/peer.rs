//! A process with several copies, and how it is told what to do.

use crate::common::{DEADLINE, Directory, Parent, Process, is};
use crate::copy::{self, Copies};
use crate::filter;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

/// A process with several copies.
pub(crate) struct Peer(Process);

impl Peer {
    /// Starts one that runs `test` again; there, [`serve`] must be what runs.
    pub(crate) fn start(test: &str, directory: &Directory) -> Self {
        Self(Process::start(test, PEER, directory))
    }

    /// The same, where close_range(2) is forbidden.
    pub(crate) fn start_filtered(test: &str, directory: &Directory) -> Self {
        Self(Process::start(test, FILTERED, directory))
    }

    /// Kills it; returns when it is dead.
    pub(crate) fn kill(self) {
        self.0.kill();
    }

    /// Tells a copy what to do and returns its answer.
    pub(crate) fn ask(&mut self, copy: usize, line: &str) -> String {
        self.0.say(&format!("{copy} {line}"));
        self.0.hear()
    }

    /// Tells a copy what to do, which must succeed.
    pub(crate) fn tell(&mut self, copy: usize, line: &str) {
        let answer = self.ask(copy, line);
        assert_eq!(answer, "ok", "copy {copy}: {line}");
    }

    /// Starts a child by `fork` alone that stays until it is killed.
    pub(crate) fn fork(&mut self) -> Forked {
        Forked(self.ask(0, "fork").parse().expect("its number"))
    }

    /// Returns the number of descriptors that it has open, but for its liveness threads'.
    pub(crate) fn descriptors(&self) -> usize {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.0.id()));
        entries.expect("procfs").count()
    }

    /// Returns the directories in `/proc` of its liveness threads: one for each copy.
    pub(crate) fn liveness_threads(&self) -> Vec<PathBuf> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0.id())).expect("procfs");
        let paths = tasks.flatten().map(|task| task.path());
        let is_liveness = |path: &PathBuf| {
            fs::read_to_string(path.join("comm")).is_ok_and(|name| name == "xh-liveness\n")
        };
        paths.filter(is_liveness).collect()
    }

    /// Returns the number of descriptors that its liveness threads have.
    pub(crate) fn locked(&self) -> usize {
        let count = |path: PathBuf| fs::read_dir(path.join("fd")).expect("procfs").count();
        self.liveness_threads().into_iter().map(count).sum()
    }

    /// Waits until that number is left: locks end a moment after what they stand for.
    pub(crate) fn await_locked(&self, number: usize) {
        eventually("the locks end", || self.locked() == number);
    }
}

/// A child of a peer, which never outlives its test.
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

/// Does what a peer is told, in a process that is one.
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

/// Waits until something is so.
pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not in time");
        std::thread::yield_now();
    }
}
