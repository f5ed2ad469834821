//! Starts the child processes of a scenario, collects their results, and kills late processes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::child::ChildResult;
use super::link::{HungUp, Link};
use super::outcome::Outcome;
use super::plan::Plan;
use super::scenario::Scenario;

/// Time in which the other processes may report after one process has failed.
///
/// The cause is often in another process, which reports within milliseconds, or later on a busy
/// machine.
const FAILURE_GRACE: Duration = Duration::from_secs(2);

/// A child process that is killed and reaped when dropped.
struct ChildProcess {
    process: Child,
    control: Link,
    /// The process's last message, once received.
    result: Option<ChildResult>,
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Fails only if the process has been reaped already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Measures one scenario in new child processes.
pub(crate) fn run(scenario: &Scenario, plan: &Plan) -> Result<Outcome> {
    let plan = serde_json::to_string(plan)?;
    let mut children = (0..=scenario.followers)
        .map(|rank| start(scenario.name, rank, &plan))
        .collect::<Result<Vec<_>>>()?;
    connect(&children)?;
    collect(&mut children, scenario.limit)
}

fn start(scenario: &str, rank: usize, plan: &str) -> Result<ChildProcess> {
    let (parents_end, childs_end) = Link::pair()?;
    // `/proc/self/exe` refers to this process's binary even if its file was replaced in the
    // meantime.
    let process = Command::new("/proc/self/exe")
        .arg0("crosshandle-bench")
        .args(["child", scenario, &rank.to_string(), plan])
        .stdin(OwnedFd::from(childs_end))
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start a measuring process")?;
    Ok(ChildProcess {
        process,
        control: parents_end,
        result: None,
    })
}

/// Gives the leader a link to each follower, and starts all processes.
fn connect(children: &[ChildProcess]) -> Result<()> {
    let (leader, followers) = children.split_first().context("a scenario has a leader")?;
    let mut leader_ends = Vec::new();
    for follower in followers {
        let (leader_end, follower_end) = Link::pair()?;
        follower
            .control
            .send_with(b"start", &[follower_end.as_fd()])?;
        leader_ends.push(leader_end);
    }
    let borrowed: Vec<BorrowedFd<'_>> = leader_ends.iter().map(AsFd::as_fd).collect();
    leader.control.send_with(b"start", &borrowed)
}

/// Waits until every process has reported, and merges the outcomes.
fn collect(children: &mut [ChildProcess], limit: Duration) -> Result<Outcome> {
    let mut deadline = Instant::now() + limit;
    let mut failure: Option<anyhow::Error> = None;
    while children.iter().any(|child| child.result.is_none()) {
        let Some(rank) = next_to_report(children, deadline)? else {
            return Err(failure.unwrap_or_else(|| late_error(children, limit)));
        };
        let result = receive_result(&mut children[rank]);
        if let ChildResult::Failed { reason, hung_up } = &result {
            let error = anyhow!("{reason} (in {})", process_name(rank));
            if !hung_up {
                return Err(error);
            }
            // The process that has ended, or a third one, may still report the cause.
            deadline = deadline.min(Instant::now() + FAILURE_GRACE);
            failure.get_or_insert(error);
        }
        children[rank].result = Some(result);
    }
    if let Some(error) = failure {
        return Err(error);
    }
    let mut outcome = Outcome::default();
    for child in children {
        if let Some(ChildResult::Done(part)) = child.result.take() {
            outcome.merge(part);
        }
    }
    Ok(outcome)
}

/// Waits for the next process that reports, and returns its rank, or `None` at the deadline.
fn next_to_report(children: &[ChildProcess], deadline: Instant) -> Result<Option<usize>> {
    loop {
        let waiting: Vec<usize> = (0..children.len())
            .filter(|&rank| children[rank].result.is_none())
            .collect();
        let mut polled: Vec<PollFd<'_>> = waiting
            .iter()
            .map(|&rank| PollFd::new(&children[rank].control, PollFlags::IN))
            .collect();
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).context("the time limit is too long")?;
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) => return Ok(None),
            Ok(_) => {
                let ready = polled.iter().position(|fd| !fd.revents().is_empty());
                return Ok(ready.map(|index| waiting[index]));
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => bail!("cannot wait for the measuring processes: {error}"),
        }
    }
}

/// Receives the result of a process that reports, or determines why the process has ended.
fn receive_result(child: &mut ChildProcess) -> ChildResult {
    let received = child
        .control
        .receive()
        .and_then(|message| Ok(serde_json::from_slice(&message.bytes)?));
    match received {
        Ok(result) => result,
        Err(error) if error.is::<HungUp>() => {
            let status = match child.process.wait() {
                Ok(status) => status.to_string(),
                Err(error) => format!("unknown exit status: {error}"),
            };
            ChildResult::Failed {
                reason: format!("ended without a result, {status}"),
                hung_up: false,
            }
        }
        Err(error) => ChildResult::Failed {
            reason: format!("{error:#}"),
            hung_up: false,
        },
    }
}

/// Returns the error of a scenario that has exceeded its time limit.
fn late_error(children: &[ChildProcess], limit: Duration) -> anyhow::Error {
    let silent: Vec<String> = (0..children.len())
        .filter(|&rank| children[rank].result.is_none())
        .map(process_name)
        .collect();
    anyhow!(
        "no result within {limit:?}: still waiting for {}",
        silent.join(", ")
    )
}

fn process_name(rank: usize) -> String {
    if rank == 0 {
        "the leader process".to_owned()
    } else {
        format!("follower {rank}")
    }
}
