//! The host backend: memory and events between processes of one machine.

mod churn;
mod cold;
mod events;
mod fanout;
mod first_open;
mod handles;
mod ours;
mod read;
mod recycle;
mod scale;
mod wake;

use std::time::Instant;

use anyhow::{Result, ensure};

use crate::harness::crew;
use crate::harness::plan::Plan;
use crate::harness::scenario::Scenario;
use crate::report::Report;
use crate::report::machine::Machine;
use crate::report::row::{Row, Verdict};

/// In the order of the table.
pub(crate) static SCENARIOS: &[&Scenario] = &[
    &events::SCENARIO,
    &wake::SPINNING,
    &wake::SLEEPING,
    &wake::SHARED_CORE,
    &fanout::SCENARIO,
    &handles::SCENARIO,
    &first_open::TWO_CORES,
    &first_open::SHARED_CORE,
    &cold::SCENARIO,
    &recycle::SCENARIO,
    &read::SCENARIO,
    &scale::EVENTS,
    &scale::ALLOCATIONS,
    &churn::SCENARIO,
];

pub(crate) fn find(name: &str) -> Option<&'static Scenario> {
    SCENARIOS
        .iter()
        .copied()
        .find(|scenario| scenario.name == name)
}

/// Measures every scenario whose name contains `only`, one after the other.
pub(crate) fn measure(plan: &Plan, only: Option<&str>) -> Result<Report> {
    let chosen: Vec<&Scenario> = SCENARIOS
        .iter()
        .copied()
        .filter(|scenario| only.is_none_or(|text| scenario.name.contains(text)))
        .collect();
    ensure!(
        !chosen.is_empty(),
        "no scenario has this text in its name; --list shows them all"
    );
    let machine = Machine::here();
    if machine
        .load
        .is_some_and(|load| load > 0.3 * machine.cpus as f64)
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
        rows,
    })
}

/// Each row of the scenario, measured or with the reason why not.
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
    match crew::run(scenario, plan) {
        Ok(outcome) => scenario
            .rows
            .iter()
            .map(|row| row.measured(&outcome))
            .collect(),
        Err(error) => all(Verdict::Failed, &format!("{error:#}")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::SCENARIOS;

    #[test]
    fn identifiers_are_unique_and_shell_safe() {
        let (mut names, mut seen) = (HashSet::new(), HashSet::new());
        for scenario in SCENARIOS {
            assert!(names.insert(scenario.name), "{} twice", scenario.name);
            for row in scenario.rows {
                assert!(seen.insert(row.id), "{} twice", row.id);
                let safe = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
                assert!(row.id.chars().all(safe), "{}", row.id);
                assert!(
                    row.id.starts_with(scenario.name),
                    "{} in {}",
                    row.id,
                    scenario.name
                );
            }
        }
    }
}
