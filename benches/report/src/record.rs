//! A file of results: several runs of one suite on one machine, with the versions of everything.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Report, Row, Verdict};

/// The results of several runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The command that measured.
    pub command: String,
    /// The day of the runs, such as `2026-11-28`.
    pub date: String,
    /// The commit that was measured. It ends in `+` if files differed from the commit.
    pub commit: String,
    /// The versions of the compared programs, by name.
    pub peers: BTreeMap<String, String>,
    /// The report of each run.
    pub runs: Vec<Report>,
}

impl Record {
    /// Reads a file of results.
    ///
    /// # Errors
    /// The text is no such file, or its runs are quick ones.
    pub fn parse(json: &str) -> Result<Self, String> {
        let record: Self = serde_json::from_str(json).map_err(|error| error.to_string())?;
        if record.runs.is_empty() {
            return Err("it has no runs".to_owned());
        }
        match record.runs.iter().any(|run| run.quick) {
            true => Err("it has a quick run, which must not be quoted".to_owned()),
            false => Ok(record),
        }
    }

    /// Adds the rows of another record of the same suite. A row that both have is replaced.
    ///
    /// # Errors
    /// The records are of different commits, days, machines or numbers of runs.
    pub fn merge(&mut self, other: Self) -> Result<(), String> {
        let kind = |record: &Self| {
            let machine = record.runs.first().map(|run| run.machine.name());
            let quick = record.runs.iter().any(|run| run.quick);
            (
                record.commit.clone(),
                record.date.clone(),
                record.runs.len(),
                quick,
                machine,
            )
        };
        if kind(self) != kind(&other) {
            return Err(format!(
                "the earlier results are of {:?}, and these are of {:?}",
                kind(self),
                kind(&other)
            ));
        }
        self.peers.extend(other.peers);
        for (run, later) in self.runs.iter_mut().zip(other.runs) {
            run.machine.load = match (run.machine.load, later.machine.load) {
                (Some(one), Some(two)) => Some(one.max(two)),
                (one, two) => one.or(two),
            };
            run.peers.extend(later.peers);
            for row in later.rows {
                match run.rows.iter_mut().find(|known| known.id == row.id) {
                    Some(known) => *known = row,
                    None => run.rows.push(row),
                }
            }
        }
        Ok(())
    }

    /// Describes the machine, with the lowest and the highest load at the start of a run.
    #[must_use]
    pub fn machine(&self) -> String {
        let Some(Report { machine, .. }) = self.runs.first() else {
            return String::new();
        };
        let loads = self.runs.iter().filter_map(|run| run.machine.load);
        let loads = sorted(loads.collect());
        let load = match loads[..] {
            [low, .., high] => format!(", load {low:.1} to {high:.1}"),
            [load] => format!(", load {load:.1}"),
            [] => String::new(),
        };
        format!("{}{load}", machine.name())
    }

    /// Returns each row of the first run that `is_chosen` accepts, as it was measured in each run.
    pub fn rows(&self, is_chosen: impl Fn(&Row) -> bool) -> Vec<Vec<&Row>> {
        let first = self.runs.first().map_or(&[][..], |run| &run.rows);
        let chosen = first.iter().filter(|row| is_chosen(row));
        let runs_of = |row: &Row| {
            let rows = self.runs.iter().flat_map(|run| &run.rows);
            rows.filter(|other| other.id == row.id).collect()
        };
        chosen.map(runs_of).collect()
    }
}

/// Returns the lowest value, the median and the highest value.
#[must_use]
pub fn spread(values: impl Iterator<Item = f64>) -> Option<[f64; 3]> {
    let values = sorted(values.collect());
    let middle = values.len() / 2;
    let median = match values.len() % 2 {
        1 => *values.get(middle)?,
        _ => (values.get(middle.checked_sub(1)?)? + values.get(middle)?) / 2.0,
    };
    Some([*values.first()?, median, *values.last()?])
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// Describes in how many runs a row reached its target.
#[must_use]
pub fn verdict(runs: &[&Row]) -> String {
    let count = |verdict| runs.iter().filter(|row| row.verdict == verdict).count();
    let bad = |verdict: Verdict, count: usize| match count == runs.len() {
        true => verdict.word().to_owned(),
        false => format!("{} in {count} of {}", verdict.word(), runs.len()),
    };
    let counts = [Verdict::Missed, Verdict::Failed, Verdict::Skipped].map(count);
    match counts {
        [0, 0, 0] if count(Verdict::Reached) > 0 => Verdict::Reached.word().to_owned(),
        [0, 0, 0] => Verdict::Information.word().to_owned(),
        [0, 0, skipped] => bad(Verdict::Skipped, skipped),
        [missed, 0, _] => bad(Verdict::Missed, missed),
        [_, failed, _] => bad(Verdict::Failed, failed),
    }
}
