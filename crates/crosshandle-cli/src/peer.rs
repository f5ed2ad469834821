//! The second process of this program, which is started to share with.

use crate::cli::Settings;
use crate::commands::peer::Role;
use crate::failure::{Cause, Context, Failure, Result};
use crate::link::{Link, wait_for};
use clap::ValueEnum;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longest time in which a process without work ends.
const EXIT_TIME_LIMIT: Duration = Duration::from_secs(5);

/// A second process. Killed when dropped, if it still runs.
pub(crate) struct Peer {
    process: Running,
    link: Link,
    /// Descriptor that is readable once the process has ended.
    ended: OwnedFd,
}

impl Peer {
    /// Starts this program again in another role.
    pub(crate) fn start(role: Role, settings: &Settings) -> Result<Self> {
        // The file may have been replaced since this process was started; this link leads to the
        // running one.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("crosshandle").arg("peer");
        if let Some(role) = role.to_possible_value() {
            command.arg(role.get_name());
        }
        if let Some(directory) = &settings.origin.socket_dir {
            command.arg("--socket-dir").arg(directory);
        }
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a second process (/proc/self/exe)")?;
        let mut process = Running(child);
        let child = &mut process.0;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::error("the second process has no pipes"));
        };
        let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty())
            .context("watching the second process")?;
        Ok(Self {
            process,
            link: Link::new(output.into(), input.into()),
            ended,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.0.id()
    }

    pub(crate) fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    /// Waits until the process has ended by itself.
    pub(crate) fn finish(mut self, timeout: Duration) -> Result<()> {
        if !wait_for(&self.ended, Instant::now() + timeout)? {
            return Err(Failure::timed_out("the second process does not end"));
        }
        let status = self
            .process
            .0
            .wait()
            .context("waiting for the second process")?;
        if status.success() {
            return Ok(());
        }
        Err(explain(status))
    }

    /// Returns the cause of a failure on this side, which often is an earlier failure of the second
    /// process.
    pub(crate) fn cause_of(&mut self, failure: Failure) -> Failure {
        if !failure.is_peer_dead() {
            return failure;
        }
        // A process's descriptors are closed a little before it has ended.
        let _ = wait_for(&self.ended, Instant::now() + EXIT_TIME_LIMIT);
        match self.process.0.try_wait() {
            Ok(Some(status)) if !status.success() => explain(status),
            _ => failure,
        }
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both do nothing if the process was already waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn explain(status: ExitStatus) -> Failure {
    match (status.code(), status.signal()) {
        (Some(3), _) => Failure::timed_out("the second process timed out"),
        (Some(code @ (1 | 2)), _) => Failure::new(
            Cause::Error,
            format!("the second process failed with status {code}; it says why above"),
        ),
        (Some(code), _) => {
            Failure::peer_died(format!("the second process has ended with status {code}"))
        }
        (None, Some(signal)) => {
            Failure::peer_died(format!("the second process was killed by signal {signal}"))
        }
        (None, None) => Failure::peer_died("the second process has ended"),
    }
}
