//! The main function of a child process, which measures.

use std::os::fd::AsFd;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::link::{HungUp, Link};
use super::outcome::Outcome;
use super::scenario::{Participant, Scenario};

/// The last message of a child process to the parent process.
#[derive(Serialize, Deserialize)]
pub(crate) enum ChildResult {
    Done(Outcome),
    Failed {
        reason: String,
        /// Whether the process failed because another process, which has the actual error, has
        /// ended.
        hung_up: bool,
    },
}

type FindScenario = fn(&str) -> Option<&'static Scenario>;

/// Runs the process with this rank in a scenario. Its standard input is the link to the parent
/// process.
pub(crate) fn run(find: FindScenario, scenario: &str, rank: usize, plan: &str) -> ExitCode {
    match measure_and_report(find, scenario, rank, plan) {
        Ok(()) => ExitCode::SUCCESS,
        // The parent process has ended, or a user started this one, so only standard error can
        // report the error.
        Err(error) => {
            eprintln!("error: {scenario}, process {rank}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure_and_report(find: FindScenario, scenario: &str, rank: usize, plan: &str) -> Result<()> {
    // A process that spins would not notice the end of the parent process.
    set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot ask to be ended with the benchmark")?;
    let control = Link::from(
        std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .context("cannot duplicate standard input")?,
    );
    let result = match measure(find, scenario, rank, plan, &control) {
        Ok(outcome) => ChildResult::Done(outcome),
        Err(error) => ChildResult::Failed {
            hung_up: error.chain().any(|cause| cause.is::<HungUp>()),
            reason: format!("{error:#}"),
        },
    };
    control.send(&serde_json::to_vec(&result)?)
}

/// Receives this process's links, and runs its part of the scenario.
fn measure(
    find: FindScenario,
    scenario: &str,
    rank: usize,
    plan: &str,
    control: &Link,
) -> Result<Outcome> {
    let scenario = find(scenario).with_context(|| format!("no scenario {scenario:?}"))?;
    let plan = serde_json::from_str(plan).context("the plan is not valid JSON")?;
    let start = control.receive().context("waiting for the start")?;
    let links: Vec<Link> = start.descriptors.into_iter().map(Link::from).collect();
    let expected = if rank == 0 { scenario.followers } else { 1 };
    ensure!(
        links.len() == expected,
        "expected {expected} links, not {}",
        links.len()
    );
    let participant = Participant { plan, links };
    if rank == 0 {
        (scenario.leader)(&participant)
    } else {
        (scenario.follower)(&participant)
    }
}
