//! Starts the processes of a scenario, waits for what they report, kills them when late.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::child::Verdict;
use super::link::{HungUp, Link};
use super::outcome::Outcome;
use super::plan::Plan;
use super::scenario::Scenario;

/// How long the others may take to say what went wrong once one process has failed.
const GRACE: Duration = Duration::from_secs(2);

/// One measuring process; killed and reaped when dropped.
struct Member {
    process: Child,
    control: Link,
    verdict: Option<Verdict>,
}

impl Drop for Member {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Measures one scenario.
pub(crate) fn run(scenario: &Scenario, plan: &Plan) -> Result<Outcome> {
    let plan = serde_json::to_string(plan)?;
    let mut crew = (0..=scenario.followers)
        .map(|rank| start(scenario.name, rank, &plan))
        .collect::<Result<Vec<_>>>()?;
    introduce(&crew)?;
    collect(&mut crew, scenario.limit)
}

fn start(scenario: &str, rank: usize, plan: &str) -> Result<Member> {
    let (ours, theirs) = Link::pair()?;
    // Through `/proc/self/exe` a binary that was replaced meanwhile still starts itself.
    let process = Command::new("/proc/self/exe")
        .arg0("crosshandle-bench")
        .args(["child", scenario, &rank.to_string(), plan])
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start a measuring process")?;
    Ok(Member {
        process,
        control: ours,
        verdict: None,
    })
}

/// Gives the lead a link to each hand, and lets all of them start.
fn introduce(crew: &[Member]) -> Result<()> {
    let (leader, followers) = crew.split_first().context("a scenario has a leader")?;
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

/// Waits until every process has reported.
fn collect(crew: &mut [Member], limit: Duration) -> Result<Outcome> {
    let mut deadline = Instant::now() + limit;
    let mut failure: Option<anyhow::Error> = None;
    while crew.iter().any(|member| member.verdict.is_none()) {
        let Some(rank) = next_to_speak(crew, deadline)? else {
            return Err(failure.unwrap_or_else(|| late(crew, limit)));
        };
        let verdict = hear(&mut crew[rank]);
        if let Verdict::Failed { reason, hung_up } = &verdict {
            let error = anyhow!("{reason} (in {})", process_name(rank));
            if !hung_up {
                return Err(error);
            }
            // Somebody else knows more, if it is still able to say so.
            deadline = deadline.min(Instant::now() + GRACE);
            failure.get_or_insert(error);
        }
        crew[rank].verdict = Some(verdict);
    }
    if let Some(error) = failure {
        return Err(error);
    }
    let mut outcome = Outcome::default();
    for member in crew {
        if let Some(Verdict::Done(part)) = member.verdict.take() {
            outcome.merge(part);
        }
    }
    Ok(outcome)
}

/// The next process that has something to say, or `None` at the deadline.
fn next_to_speak(crew: &[Member], deadline: Instant) -> Result<Option<usize>> {
    loop {
        let waiting: Vec<usize> = (0..crew.len())
            .filter(|&rank| crew[rank].verdict.is_none())
            .collect();
        let mut polled: Vec<PollFd<'_>> = waiting
            .iter()
            .map(|&rank| PollFd::new(&crew[rank].control, PollFlags::IN))
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

/// Takes the verdict of a process that has something to say.
fn hear(member: &mut Member) -> Verdict {
    let heard = member
        .control
        .receive()
        .and_then(|message| Ok(serde_json::from_slice(&message.bytes)?));
    match heard {
        Ok(verdict) => verdict,
        Err(error) if error.is::<HungUp>() => {
            let status = match member.process.wait() {
                Ok(status) => status.to_string(),
                Err(error) => format!("unknown exit status: {error}"),
            };
            Verdict::Failed {
                reason: format!("ended without a result, {status}"),
                hung_up: false,
            }
        }
        Err(error) => Verdict::Failed {
            reason: format!("{error:#}"),
            hung_up: false,
        },
    }
}

fn late(crew: &[Member], limit: Duration) -> anyhow::Error {
    let silent: Vec<String> = (0..crew.len())
        .filter(|&rank| crew[rank].verdict.is_none())
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
