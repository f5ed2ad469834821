//! The inside of a measuring process.

use std::os::fd::AsFd;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::link::{HungUp, Link};
use super::outcome::Outcome;
use super::scenario::Participant;
use crate::suites;

/// The last message of a measuring process.
#[derive(Serialize, Deserialize)]
pub(crate) enum Verdict {
    Done(Outcome),
    Failed {
        reason: String,
        /// True if all this process knows is that another one has gone: the cause is there.
        hung_up: bool,
    },
}

/// Runs one rank of a scenario. Standard input is the control link.
pub(crate) fn run(scenario: &str, rank: usize, plan: &str) -> ExitCode {
    match run_rank(scenario, rank, plan) {
        Ok(()) => ExitCode::SUCCESS,
        // Started by hand, or the benchmark has gone: standard error is all there is.
        Err(error) => {
            eprintln!("error: {scenario}, process {rank}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_rank(scenario: &str, rank: usize, plan: &str) -> Result<()> {
    // A spinning process would not notice that the benchmark was interrupted.
    set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot ask to be ended with the benchmark")?;
    let control = Link::from(
        std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .context("cannot duplicate standard input")?,
    );
    let verdict = match measure(scenario, rank, plan, &control) {
        Ok(outcome) => Verdict::Done(outcome),
        Err(error) => Verdict::Failed {
            hung_up: error.chain().any(|cause| cause.is::<HungUp>()),
            reason: format!("{error:#}"),
        },
    };
    control.send(&serde_json::to_vec(&verdict)?)
}

fn measure(scenario: &str, rank: usize, plan: &str, control: &Link) -> Result<Outcome> {
    let scenario = suites::find(scenario).with_context(|| format!("no scenario {scenario:?}"))?;
    let plan = serde_json::from_str(plan).context("the plan is not valid JSON")?;
    let start = control.receive().context("waiting for the start")?;
    let links: Vec<Link> = start.descriptors.into_iter().map(Link::from).collect();
    let expected = if rank == 0 { scenario.followers } else { 1 };
    ensure!(
        links.len() == expected,
        "expected {expected} links, not {}",
        links.len()
    );
    let place = Participant { plan, links };
    if rank == 0 {
        (scenario.leader)(&place)
    } else {
        (scenario.follower)(&place)
    }
}
