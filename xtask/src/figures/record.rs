//! A file of results: several runs of one suite on one machine, with the versions of everything.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The results of several runs.
#[derive(Serialize, Deserialize)]
pub(crate) struct Record {
    /// The command that measured.
    pub(crate) command: String,
    /// The day of the runs, such as `2026-11-28`.
    pub(crate) date: String,
    /// The commit that was measured. It ends in `+` if files differed from the commit.
    pub(crate) commit: String,
    /// The versions of the compared programs, by name.
    pub(crate) peers: BTreeMap<String, String>,
    /// The reports of the benchmark program.
    pub(crate) runs: Vec<Run>,
}

/// The report of one run.
#[derive(Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) machine: Machine,
    pub(crate) quick: bool,
    pub(crate) rows: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Machine {
    cpu: String,
    cpus: usize,
    kernel: String,
    gpus: Option<String>,
    load: Option<f64>,
}

/// A row of a report. `benches/src/report/row.rs` describes the members.
#[derive(Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) what: String,
    pub(crate) raw_technique: String,
    pub(crate) unit: Unit,
    pub(crate) statistic: Statistic,
    ours: Option<Summary>,
    raw: Option<Summary>,
    pub(crate) ratio: Option<f64>,
    pub(crate) overhead: Option<f64>,
    pub(crate) target: Target,
    verdict: String,
    note: Option<String>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Summary {
    p50: f64,
    p99: f64,
    samples: usize,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Statistic {
    P50,
    P99,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    Nanoseconds,
    Times,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(tag = "kind", content = "bound", rename_all = "snake_case")]
pub(crate) enum Target {
    AtMost(f64),
    AtMostTimesRaw(f64),
    AtMostTimesRawPlus(f64, f64),
    AtMostOverRaw(f64),
    None,
}

impl Record {
    /// Reads a file of results.
    ///
    /// # Errors
    /// The text is no such file, or its runs are quick ones.
    pub(crate) fn parse(json: &str) -> Result<Self, String> {
        let record: Self = serde_json::from_str(json).map_err(|error| error.to_string())?;
        if record.runs.is_empty() {
            return Err("it has no runs".to_owned());
        }
        match record.runs.iter().any(|run| run.quick) {
            true => Err("it has a quick run, which must not be quoted".to_owned()),
            false => Ok(record),
        }
    }

    /// Describes the machine, with the lowest and the highest load at the start of a run.
    pub(crate) fn machine(&self) -> String {
        let Some(Run { machine, .. }) = self.runs.first() else {
            return String::new();
        };
        let gpus = machine.gpus.as_ref().map(|gpus| format!("{gpus}; "));
        let mut loads: Vec<_> = (self.runs.iter())
            .filter_map(|run| run.machine.load)
            .collect();
        loads.sort_unstable_by(f64::total_cmp);
        let load = match loads[..] {
            [low, .., high] => format!(", load {low:.1} to {high:.1}"),
            [load] => format!(", load {load:.1}"),
            [] => String::new(),
        };
        format!(
            "{}{}, {} CPUs, {}{load}",
            gpus.unwrap_or_default(),
            machine.cpu,
            machine.cpus,
            machine.kernel
        )
    }
}

impl Row {
    pub(crate) fn ours(&self) -> Option<f64> {
        self.ours.map(|summary| self.statistic.of(summary))
    }

    pub(crate) fn raw(&self) -> Option<f64> {
        self.raw.map(|summary| self.statistic.of(summary))
    }
}

impl Statistic {
    fn of(self, summary: Summary) -> f64 {
        match self {
            Self::P50 => summary.p50,
            Self::P99 => summary.p99,
        }
    }
}

impl Unit {
    /// Formats a value with its unit.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::Nanoseconds => time(value),
            Self::Times => times(value),
        }
    }
}

impl Target {
    pub(crate) fn show(self, unit: Unit) -> String {
        match self {
            Self::AtMost(bound) => format!("≤ {}", unit.show(bound)),
            Self::AtMostTimesRaw(bound) => format!("≤ {bound} × raw"),
            Self::AtMostOverRaw(bound) => format!("≤ raw + {}", unit.show(bound)),
            Self::AtMostTimesRawPlus(factor, plus) => {
                format!("≤ {factor} × raw + {}", unit.show(plus))
            }
            Self::None => "–".to_owned(),
        }
    }
}

/// Formats a ratio.
pub(crate) fn times(ratio: f64) -> String {
    match ratio.abs() < 0.1 {
        true => format!("{ratio:.4} ×"),
        false => format!("{ratio:.2} ×"),
    }
}

/// Formats a time, given in nanoseconds, in the largest unit in which it is at least 1.
fn time(mut value: f64) -> String {
    let mut unit = "ns";
    for next in ["µs", "ms", "s"] {
        if value.abs() < 1000.0 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    let decimals = match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {unit}")
}

/// Describes in how many runs a row reached its target.
pub(crate) fn verdict(runs: &[&Row]) -> String {
    let count = |word: &str| runs.iter().filter(|row| row.verdict == word).count();
    let bad = |what: &str, count: usize| match count == runs.len() {
        true => what.to_owned(),
        false => format!("{what} in {count} of {}", runs.len()),
    };
    match (count("missed"), count("failed"), count("skipped")) {
        (0, 0, 0) if count("reached") > 0 => "ok".to_owned(),
        (0, 0, 0) => "–".to_owned(),
        (0, 0, skipped) => bad("skipped", skipped),
        (missed, 0, _) => bad("MISSED", missed),
        (_, failed, _) => bad("FAILED", failed),
    }
}
