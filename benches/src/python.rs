//! Rows that a Python program measures, `bench.py`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use bench_report::{At, Report, Row, Statistic, Summary, Target, Unit, Verdict};
use clap::Args;
use serde::Deserialize;

use crate::harness::plan::Plan;

#[derive(Args)]
pub(crate) struct Program {
    /// The interpreter, which finds the Python module and the compared packages
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
    /// The directory of `bench.py`
    #[arg(long, value_name = "DIRECTORY", default_value = "benches/python")]
    scripts: PathBuf,
}

/// A line that the program prints.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// Versions of compared packages, by name.
    Versions(BTreeMap<String, String>),
    Row(Measured),
}

/// A row with its samples, in nanoseconds.
#[derive(Deserialize)]
struct Measured {
    id: String,
    what: String,
    #[serde(default)]
    ours: Vec<f64>,
    #[serde(default)]
    peer: Vec<f64>,
    peer_name: Option<String>,
    target: Option<Target>,
    at: Option<At>,
    /// The reason why the machine cannot measure the row.
    skipped: Option<String>,
    /// The error of a failed measurement.
    failed: Option<String>,
}

impl Program {
    /// Adds the rows of one part of the program to a report.
    pub(crate) fn measure(
        &self,
        part: &str,
        plan: &Plan,
        only: Option<&str>,
        report: &mut Report,
    ) -> Result<()> {
        let mut command = Command::new(&self.python);
        command
            .arg("-B")
            .arg(self.scripts.join("bench.py"))
            .arg(part);
        if plan.quick {
            command.arg("--quick");
        }
        if let Some(only) = only {
            command.args(["--only", only]);
        }
        let mut process = command
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", self.python.display()))?;
        let output = process.stdout.take().context("the program has no output")?;
        for line in BufReader::new(output).lines() {
            let line = line?;
            // Libraries print lines of their own.
            match serde_json::from_str(&line) {
                Ok(Line::Versions(versions)) => report.peers.extend(versions),
                Ok(Line::Row(row)) => report.rows.push(row.judged()),
                Err(error) => {
                    ensure!(!line.starts_with("{\"row\""), "{line}: {error}");
                    eprintln!("{line}");
                }
            }
        }
        let status = process.wait()?;
        ensure!(status.success(), "bench.py {part} ended with {status}");
        Ok(())
    }
}

impl Measured {
    fn judged(self) -> Row {
        let row = Row {
            id: self.id,
            what: self.what,
            raw_technique: self.peer_name.unwrap_or_else(|| "none".to_owned()),
            unit: Unit::Nanoseconds,
            statistic: Statistic::P50,
            ours: Summary::of(&self.ours),
            raw: Summary::of(&self.peer),
            ratio: None,
            overhead: None,
            target: self.target.unwrap_or(Target::None),
            verdict: Verdict::Failed,
            note: None,
            at: self.at,
        };
        match (self.failed, self.skipped) {
            (Some(error), _) => Row {
                note: Some(error),
                ..row
            },
            (None, Some(reason)) => Row {
                verdict: Verdict::Skipped,
                note: Some(reason),
                ..row
            },
            (None, None) => row.judged(),
        }
    }
}
