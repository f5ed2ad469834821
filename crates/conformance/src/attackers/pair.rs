//! A holder and its successor in a siege. Both are real processes of the command. This file also
//! sets the limits of their resources.

use crate::failure::Failure;
use crate::procfs::{Usage, threads};
use crosshandle::holder::{Holder, Status};
use crosshandle::{Error, PeerPolicy, holder::HolderFault};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Maximum number of descriptors of each process of the pair.
const DESCRIPTORS: u64 = 8192;
/// Maximum time until a pair is complete, or has released the resources of ended programs.
const SETTLED: Duration = Duration::from_secs(20);
/// Interval at which the pair is checked.
const LOOK: Duration = Duration::from_millis(5);
/// Number of lines of the pair's output that a failure shows.
const LAST_WORDS: usize = 6;
/// Maximum number of threads of one process of the pair. This is the sum of its maximum number of
/// jobs and its own threads.
const MAX_THREADS: usize = 24 + 16;
/// Maximum growth of the resident memory of one process of the pair, in KiB. This is a quarter of
/// the quota of all programs together.
const MAX_GROWTH: usize = 128 << 10;
/// Resident memory that may remain after an attack, in KiB, because the allocator keeps it.
const MAX_REMAINDER: usize = 24 << 10;
/// Number of descriptors and threads that may remain, because an idle background thread and its
/// descriptors stay for a while.
const MAX_REMAINING: usize = 2;

/// The resources of one process of the pair.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Taken {
    pub(super) descriptors: usize,
    pub(super) threads: usize,
    pub(super) resident: usize,
}

impl Taken {
    fn of(pid: u32) -> Result<Self, Failure> {
        let usage = Usage::of(pid)?;
        Ok(Self {
            descriptors: usage.descriptors,
            threads: threads(pid)?,
            resident: usage.resident,
        })
    }

    pub(super) fn max(self, other: Self) -> Self {
        Self {
            descriptors: self.descriptors.max(other.descriptors),
            threads: self.threads.max(other.threads),
            resident: self.resident.max(other.resident),
        }
    }
}

/// A holder, its successor, and their directory. Ended on drop.
pub(super) struct Pair {
    pub(super) directory: PathBuf,
    command: PathBuf,
    user: Option<u32>,
    admitted: Vec<u32>,
    child: Option<Child>,
    holder: Holder,
    /// The status when the pair was last complete.
    pub(super) status: Status,
}

impl Drop for Pair {
    fn drop(&mut self) {
        for pid in self.pids() {
            signal(pid, Signal::KILL);
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
        let _ = fs::remove_file(self.directory.with_extension("log"));
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

impl Pair {
    /// Starts a pair in a new directory. It runs as `user`, or as this process's user if `user` is
    /// `None`. `admitted` lists the other users who may use the pair.
    pub(super) fn start(
        command: &Path,
        directory: PathBuf,
        user: Option<u32>,
        admitted: &[u32],
    ) -> Result<Self, Failure> {
        fs::create_dir(&directory)?;
        let mode = if admitted.is_empty() { 0o700 } else { 0o1777 };
        fs::set_permissions(&directory, fs::Permissions::from_mode(mode))?;
        if let Some(user) = user {
            chown(&directory, Some(user), Some(user))?;
        }
        let holder = Holder::new()
            .socket_dir(&directory)
            .peers(PeerPolicy::Anyone)
            .timeout(SETTLED);
        let mut pair = Self {
            directory,
            command: command.to_owned(),
            user,
            admitted: admitted.to_vec(),
            child: None,
            holder,
            status: Status::default(),
        };
        pair.begin()?;
        Ok(pair)
    }

    fn begin(&mut self) -> Result<(), Failure> {
        let mut command = Command::new("/bin/sh");
        let limited = format!("ulimit -n {DESCRIPTORS}; exec \"$0\" \"$@\"");
        command
            .args(["-c", &limited])
            .arg(&self.command)
            .arg("hold");
        if !self.admitted.is_empty() {
            let users: Vec<_> = self.admitted.iter().map(u32::to_string).collect();
            command.args(["--users", &users.join(",")]);
        }
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        self.child = Some(
            command
                .env("CROSSHANDLE_SOCKET_DIR", &self.directory)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(self.log()?)
                .spawn()?,
        );
        self.await_safe()
    }

    /// Opens the log file of the pair's output, which helps to explain a failure.
    fn log(&self) -> std::io::Result<File> {
        let path = self.directory.with_extension("log");
        File::options().create(true).append(true).open(path)
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.directory.with_extension("log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().rev().take(LAST_WORDS).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("; ")
    }

    fn pids(&self) -> Vec<u32> {
        let status = &self.status;
        let all = [Some(status.pid), status.successor];
        all.into_iter().flatten().filter(|pid| *pid != 0).collect()
    }

    /// Waits until a successor has all of the holder's descriptors.
    pub(super) fn await_safe(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        loop {
            match self.holder.status() {
                Ok(status) if status.is_safe => {
                    self.status = status;
                    return Ok(());
                }
                other if began.elapsed() > SETTLED * crate::slowdown() => {
                    return Err(Failure::new(format!(
                        "the pair is not safe: {other:?}; it said: {}",
                        self.last_words()
                    )));
                }
                _ => sleep(LOOK),
            }
        }
    }

    /// Returns the resources of both processes, the holder first.
    pub(super) fn taken(&self) -> Result<[Taken; 2], Failure> {
        let successor = self.status.successor.unwrap_or_default();
        Ok([Taken::of(self.status.pid)?, Taken::of(successor)?])
    }

    /// Checks that no process of the pair was replaced, and that neither has more resources than
    /// its limit.
    pub(super) fn check(&self, before: &[Taken; 2]) -> Result<[Taken; 2], Failure> {
        let now = self.taken().map_err(|failure| {
            Failure::new(format!("a process of the pair has ended: {failure}"))
        })?;
        for (now, before) in now.iter().zip(before) {
            if now.threads > MAX_THREADS
                || now.descriptors as u64 > DESCRIPTORS
                || now.resident > before.resident + MAX_GROWTH
            {
                return Err(Failure::new(format!(
                    "a process of the pair takes {now:?}, and had {before:?}"
                )));
            }
        }
        Ok(now)
    }

    /// Checks that no process was replaced, by the status that the holder reports.
    pub(super) fn check_same(&self) -> Result<(), Failure> {
        let now = self.holder.status()?;
        let is_same = now.pid == self.status.pid
            && now.successor == self.status.successor
            && now.takeovers == self.status.takeovers;
        match is_same {
            true => Ok(()),
            false => Err(Failure::new(format!(
                "a process of the pair was replaced: {now:?}, and was {:?}",
                self.status
            ))),
        }
    }

    /// Removes the names that start with `hostile`, and waits until the pair has no more resources
    /// than before. If `with_threads` is `true`, also waits until its idle background threads have
    /// ended.
    pub(super) fn settle(
        &mut self,
        hostile: &str,
        before: &[Taken; 2],
        with_threads: bool,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        loop {
            // An unfinished hand-over may still complete after its program has ended.
            for name in self.holder.list()? {
                if name.name.starts_with(hostile) {
                    match self.holder.remove(&name.name) {
                        Err(Error::Holder {
                            fault: HolderFault::NoSuchName,
                            ..
                        })
                        | Ok(()) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            self.await_safe()?;
            let now = self.taken()?;
            let is_free = now.iter().zip(before).all(|(now, before)| {
                now.descriptors <= before.descriptors + MAX_REMAINING
                    && (!with_threads || now.threads <= before.threads + MAX_REMAINING)
                    && now.resident <= before.resident + MAX_REMAINDER
            });
            if is_free {
                return Ok(());
            }
            if began.elapsed() > SETTLED * crate::slowdown() {
                return Err(Failure::new(format!(
                    "after the attack the pair has {now:?}, and had {before:?} before"
                )));
            }
            sleep(4 * LOOK);
        }
    }

    /// Kills the holder, and waits until its successor has taken over.
    pub(super) fn kill_holder(&mut self) -> Result<(), Failure> {
        signal(self.status.pid, Signal::KILL);
        self.reap();
        let before = self.status.takeovers;
        self.await_safe()?;
        match self.status.takeovers == before + 1 {
            true => Ok(()),
            false => Err(Failure::new(format!("no takeover: {:?}", self.status))),
        }
    }

    /// Kills both processes at the same time, and starts a new pair in the same directory.
    pub(super) fn kill_both(&mut self) -> Result<(), Failure> {
        let pids = self.pids();
        // Stops both first, so that neither reacts to the other's death.
        for pid in &pids {
            signal(*pid, Signal::STOP);
        }
        for pid in &pids {
            signal(*pid, Signal::KILL);
        }
        self.reap();
        let began = Instant::now();
        while pids.iter().any(|pid| is_alive(*pid)) {
            if began.elapsed() > SETTLED * crate::slowdown() {
                return Err(Failure::new("the pair does not end"));
            }
            sleep(LOOK);
        }
        self.begin()
    }

    fn reap(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
    }
}

/// Returns whether a process is running. A process that has ended but was not reaped is not
/// running.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]);
    !matches!(state, None | Some(b'Z' | b'X'))
}
