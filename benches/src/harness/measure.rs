//! Measures scenarios one after the other.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use bench_report::{Report, Row, Verdict};

use super::launcher;
use super::plan::Plan;
use super::scenario::Scenario;
use crate::report::machine;

/// Load of the machine, as a fraction of its processors, above which a run starts with a warning.
///
/// A much lower limit would warn about the benchmark's own build.
const BUSY_LOAD_PER_CPU: f64 = 0.3;

/// Measures every scenario whose name contains `only`, one after the other.
pub(crate) fn measure(
    scenarios: &[&'static Scenario],
    plan: &Plan,
    only: Option<&str>,
) -> Result<Report> {
    let chosen: Vec<&Scenario> = scenarios
        .iter()
        .copied()
        .filter(|scenario| only.is_none_or(|text| scenario.name.contains(text)))
        .collect();
    let machine = machine::here();
    if machine
        .load
        .is_some_and(|load| load > BUSY_LOAD_PER_CPU * machine.cpus as f64)
    {
        eprintln!("warning: this machine is busy; {machine}");
    }
    let mut rows = Vec::new();
    for scenario in chosen {
        eprint!("measuring {} … ", scenario.name);
        let start = Instant::now();
        rows.extend(measure_one(scenario, plan));
        eprintln!("{:.1} s", start.elapsed().as_secs_f64());
    }
    Ok(Report {
        machine,
        quick: plan.quick,
        peers: BTreeMap::new(),
        rows,
    })
}

/// Measures a scenario. Returns its rows, each with its results or with the reason why there are
/// none.
fn measure_one(scenario: &Scenario, plan: &Plan) -> Vec<Row> {
    let all = |verdict, note: &str| {
        scenario
            .rows
            .iter()
            .map(|row| row.empty(verdict, Some(note.to_owned())))
            .collect()
    };
    let cores = plan.cpus.len();
    if cores < scenario.cores {
        let note = format!(
            "needs {} cores, and this process may use {cores}",
            scenario.cores
        );
        return all(Verdict::Skipped, &note);
    }
    match launcher::run(scenario, plan) {
        Ok(outcome) => scenario
            .rows
            .iter()
            .map(|row| row.measured(&outcome))
            .collect(),
        Err(error) => all(Verdict::Failed, &format!("{error:#}")),
    }
}
