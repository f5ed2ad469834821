//! A child process of this program, with which the parent process shares objects.

use crate::failure::{Cause, ErrorContext as _, Failure, Result};
use crate::link::{Link, wait_readable};
use crate::settings::Settings;
use clap::ValueEnum;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Maximum time that a child process may take to end after its pipes have closed.
///
/// The kernel closes a dying process's pipes shortly before the process can be waited for. If the
/// time is too short on a busy machine, the exit status is lost, which best explains why the
/// process has failed.
const CHILD_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The command that a child process belongs to.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum Role {
    Demo,
    Doctor,
}

/// A child process and the pipes to it. Dropping this value kills the process if it still runs.
pub(crate) struct Peer {
    process: KillOnDrop,
    link: Link,
    /// A descriptor that becomes readable when the process ends.
    pidfd: OwnedFd,
}

impl Peer {
    /// Starts this program again as a child process in the given role.
    pub(crate) fn start(role: Role, settings: &Settings) -> Result<Self> {
        // The program's file may have been replaced since this process was started.
        // `/proc/self/exe` still refers to the old file.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("crosshandle").arg("peer");
        if let Some(role) = role.to_possible_value() {
            command.arg(role.get_name());
        }
        if let Some(directory) = &settings.socket_dir {
            command.arg("--socket-dir").arg(directory);
        }
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a second process (/proc/self/exe)")?;
        let mut process = KillOnDrop(child);
        let child = &mut process.0;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::error("the second process has no pipes"));
        };
        let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())
            .context("watching the second process")?;
        Ok(Self {
            process,
            link: Link::new(output.into(), input.into()),
            pidfd,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.0.id()
    }

    pub(crate) fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    /// Waits until the process has ended, for at most `timeout`.
    pub(crate) fn finish(mut self, timeout: Duration) -> Result<()> {
        if !wait_readable(&self.pidfd, Instant::now() + timeout)? {
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
        Err(exit_failure(status))
    }

    /// Returns the root cause of a failure of the parent process. Often it is an earlier failure of
    /// the child process.
    pub(crate) fn root_cause(&mut self, failure: Failure) -> Failure {
        if !failure.is_peer_dead() {
            return failure;
        }
        // The kernel closes a process's pipes shortly before the process can be waited for.
        let _ = wait_readable(&self.pidfd, Instant::now() + CHILD_EXIT_TIMEOUT);
        match self.process.0.try_wait() {
            Ok(Some(status)) if !status.success() => exit_failure(status),
            _ => failure,
        }
    }
}

/// A child process that is killed and reaped when dropped.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Both calls do nothing if the process was already reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Converts a child process's exit status to a failure.
fn exit_failure(status: ExitStatus) -> Failure {
    match (status.code(), status.signal()) {
        (Some(3), _) => Failure::timed_out("the second process timed out"),
        (Some(code @ (1 | 2)), _) => Failure::new(
            Cause::Error,
            format!("the second process failed with status {code}; its message is above"),
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
