//! The victim of a case, whose steps are counted by a supervisor, and the fault that it meets.

use super::BROKEN_PROMISE;
use super::world::{LIMIT, LOOK};
use crate::failure::Failure;
use crate::faults::calls::{self, Call};
use crate::faults::filter;
use crate::faults::worker::listener;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// Time after which a stopped victim is continued. It is longer than all waits of a program that
/// continues by itself, and shorter than the time after which an unresponsive process is replaced.
const STOPPED: Duration = Duration::from_millis(400);

/// The fault that happens to the victim before a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Kill,
    Stop,
    Fail(&'static str, i32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    pub(super) call: &'static str,
    /// Number of the call among the calls of this name. Counts from 1.
    pub(super) occurrence: usize,
    pub(super) fault: Fault,
}

/// Returns whether the victim must succeed. This is so if there was no fault, or a fault that a
/// correct program handles without an error.
pub(super) fn must_succeed(plan: Option<Plan>) -> bool {
    plan.is_none_or(|plan| matches!(plan.fault, Fault::Stop | Fault::Fail("EINTR", _)))
}

/// Steps that the supervisor of a victim has seen.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) steps: Vec<&'static Call>,
    /// Number of steps by the name of their call.
    counts: BTreeMap<&'static str, usize>,
    pub(super) has_hit: bool,
}

/// A process whose steps are counted, and the thread of its supervisor.
pub(super) struct Victim {
    pub(super) child: Child,
    supervisor: Option<thread::JoinHandle<Result<Seen, Failure>>>,
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn process_of(thread: i32) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    Pid::from_raw(line.trim().parse().ok()?)
}

/// Grants all steps except the planned one, until all processes under the filter have ended.
fn supervise(listener: &OwnedFd, plan: Option<Plan>) -> Result<Seen, Failure> {
    let mut seen = Seen::default();
    let mut stopped: Option<(Pid, Instant)> = None;
    let look = Timespec::try_from(Duration::from_millis(20))?;
    loop {
        if let Some((pid, _)) = stopped.take_if(|(_, since)| since.elapsed() > STOPPED) {
            let _ = kill_process(pid, Signal::CONT);
        }
        let mut descriptors = [PollFd::new(listener, PollFlags::IN)];
        match poll(&mut descriptors, Some(&look)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let events = descriptors[0].revents();
        if !events.contains(PollFlags::IN) {
            return Ok(seen);
        }
        let Some(step) = filter::receive(listener.as_fd())? else {
            continue;
        };
        let mut error = None;
        if let Some(call) = calls::find(step.number, &step.arguments) {
            seen.steps.push(call);
            let count = seen.counts.entry(call.name).or_default();
            *count += 1;
            let is_planned = |plan: &Plan| (plan.call, plan.occurrence) == (call.name, *count);
            if let Some(plan) = plan.filter(is_planned) {
                seen.has_hit = true;
                match (plan.fault, process_of(step.thread)) {
                    (Fault::Fail(_, code), _) => error = Some(code),
                    (Fault::Kill, Some(pid)) => drop(kill_process(pid, Signal::KILL)),
                    (Fault::Stop, Some(pid)) => {
                        let _ = kill_process(pid, Signal::STOP);
                        stopped = Some((pid, Instant::now()));
                    }
                    (_, None) => seen.has_hit = false,
                }
            }
        }
        filter::respond(listener.as_fd(), step.id, error);
    }
}

impl Victim {
    /// Starts a command under the filter.
    pub(super) fn start(mut command: Command, plan: Option<Plan>) -> Result<Self, Failure> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(Duration::from_secs(20)))?;
        command
            .env(filter::VARIABLE, "1")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn()?;
        drop(command);
        let listener = listener(&ours)?;
        Ok(Self {
            child,
            supervisor: Some(thread::spawn(move || supervise(&listener, plan))),
        })
    }

    /// Waits until the victim has ended, and returns whether it succeeded.
    pub(super) fn finish(&mut self, plan: Option<Plan>) -> Result<bool, Failure> {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                let is_done = status.success();
                // A panic is always wrong. The dynamic loader, which is not part of this project,
                // treats an interrupted call as an error.
                let is_begun = status.code() != Some(127);
                let is_wrong = [Some(101), Some(BROKEN_PROMISE.into())].contains(&status.code())
                    || (!is_done && is_begun && must_succeed(plan));
                return match is_wrong {
                    true => Err(Failure::new(format!(
                        "the victim ended with {status}: {}",
                        self.complaints()
                    ))),
                    false => Ok(is_done),
                };
            }
            if since.elapsed() > LIMIT {
                return Err(Failure::new("the victim does not end"));
            }
            sleep(LOOK);
        }
    }

    /// Waits until all processes of the victim have ended.
    pub(super) fn seen(mut self) -> Result<Seen, Failure> {
        let supervisor = self
            .supervisor
            .take()
            .ok_or(Failure::new("no supervisor"))?;
        let _ = self.child.kill();
        let _ = self.child.wait();
        let since = Instant::now();
        while !supervisor.is_finished() {
            if since.elapsed() > LIMIT {
                return Err(Failure::new("a process of the victim stays"));
            }
            sleep(LOOK);
        }
        supervisor
            .join()
            .unwrap_or_else(|_| Err(Failure::new("the supervisor panicked")))
    }

    /// Returns what the victim has written to standard error so far. Does not wait for the end of
    /// the output, because the victim's successor may still run.
    pub(super) fn complaints(&mut self) -> String {
        let mut bytes = [0; 4096];
        let Some(source) = &mut self.child.stderr else {
            return String::new();
        };
        let is_set = rustix::io::ioctl_fionbio(&*source, true).is_ok();
        let count = if is_set {
            source.read(&mut bytes)
        } else {
            Ok(0)
        };
        String::from_utf8_lossy(&bytes[..count.unwrap_or(0)]).into_owned()
    }

    /// Returns the first line that the victim prints. The line is empty if the victim has ended.
    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        if let Some(output) = self.child.stdout.take() {
            // A stopped victim is continued, and the next command detects a hanging victim.
            let _ = BufReader::new(output).read_line(&mut line);
        }
        line.trim().to_owned()
    }
}
