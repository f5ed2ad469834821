//! The processes of a scenario: started, waited for, and killed when late.

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

/// Longest wait for the other processes' reports once one process has failed.
const REPORT_TIME_LIMIT: Duration = Duration::from_secs(2);

/// One measuring process. Killed and reaped when dropped.
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
    let mut crew = (0..=scenario.hands)
        .map(|seat| start(scenario.name, seat, &plan))
        .collect::<Result<Vec<_>>>()?;
    introduce(&crew)?;
    collect(&mut crew, scenario.limit)
}

fn start(scenario: &str, seat: usize, plan: &str) -> Result<Member> {
    let (ours, theirs) = Link::pair()?;
    // Through `/proc/self/exe`, a binary that was replaced meanwhile still starts itself.
    let process = Command::new("/proc/self/exe")
        .arg0("crosshandle-bench")
        .args(["child", scenario, &seat.to_string(), plan])
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
    let (lead, hands) = crew.split_first().context("a scenario has a lead")?;
    let mut lead_ends = Vec::new();
    for hand in hands {
        let (lead_end, hand_end) = Link::pair()?;
        hand.control.send_with(b"start", &[hand_end.as_fd()])?;
        lead_ends.push(lead_end);
    }
    let borrowed: Vec<BorrowedFd<'_>> = lead_ends.iter().map(AsFd::as_fd).collect();
    lead.control.send_with(b"start", &borrowed)
}

/// Waits until every process has reported.
fn collect(crew: &mut [Member], limit: Duration) -> Result<Outcome> {
    let mut deadline = Instant::now() + limit;
    let mut failure: Option<anyhow::Error> = None;
    while crew.iter().any(|member| member.verdict.is_none()) {
        let Some(seat) = next_to_speak(crew, deadline)? else {
            return Err(failure.unwrap_or_else(|| late(crew, limit)));
        };
        let verdict = hear(&mut crew[seat]);
        if let Verdict::Failed { reason, hung_up } = &verdict {
            let error = anyhow!("{reason} (in {})", seat_name(seat));
            if !hung_up {
                return Err(error);
            }
            // Another process knows the cause, if it can still report it.
            deadline = deadline.min(Instant::now() + REPORT_TIME_LIMIT);
            failure.get_or_insert(error);
        }
        crew[seat].verdict = Some(verdict);
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

/// Returns the next process that has sent something; `None` at the deadline.
fn next_to_speak(crew: &[Member], deadline: Instant) -> Result<Option<usize>> {
    loop {
        let waiting: Vec<usize> = (0..crew.len())
            .filter(|&seat| crew[seat].verdict.is_none())
            .collect();
        let mut polled: Vec<PollFd<'_>> = waiting
            .iter()
            .map(|&seat| PollFd::new(&crew[seat].control, PollFlags::IN))
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

/// Receives the verdict of a process that has sent something.
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
        .filter(|&seat| crew[seat].verdict.is_none())
        .map(seat_name)
        .collect();
    anyhow!(
        "no result within {limit:?}: still waiting for {}",
        silent.join(", ")
    )
}

fn seat_name(seat: usize) -> String {
    if seat == 0 {
        "the lead process".to_owned()
    } else {
        format!("hand {seat}")
    }
}
