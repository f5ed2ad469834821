//! Files of results: several runs of a suite.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};
use bench_report::{Record, Report};
use clap::Args;

/// The lock file, which has the versions of compared crates.
#[cfg(feature = "iceoryx2")]
const LOCK: &str = include_str!("../../../Cargo.lock");

#[derive(Args)]
pub(crate) struct RecordArgs {
    /// Run several times, and keep the results in a file. If the file exists already, rows that
    /// were measured again are replaced and new rows are added.
    #[arg(long, value_name = "RUNS", value_parser = clap::value_parser!(u16).range(1..))]
    record: Option<u16>,
    /// The directory of the file
    #[arg(long, value_name = "DIRECTORY", default_value = "benches/results")]
    into: PathBuf,
    /// The commit that is measured
    #[arg(long, default_value = "unknown")]
    commit: String,
}

impl RecordArgs {
    /// Measures as often as asked. Returns the last report. `options` are those of the suite that
    /// the file must name.
    pub(crate) fn run(
        &self,
        suite: &str,
        options: &[String],
        measure: impl Fn() -> Result<Report>,
    ) -> Result<Report> {
        let Some(runs) = self.record else {
            return measure();
        };
        let output = Command::new("date").args(["-u", "+%F"]).output();
        let date = String::from_utf8(output.context("cannot run date")?.stdout)?;
        let date = date.trim().to_owned();
        let mut reports = Vec::new();
        for number in 1..=runs {
            eprintln!("run {number} of {runs}");
            reports.push(measure()?);
        }
        let last = reports.last().context("there is no run")?.clone();
        let peers = reports.iter().flat_map(|report| report.peers.clone());
        let peers: BTreeMap<_, _> = peers.collect();
        let options: String = options.iter().map(|option| format!(" {option}")).collect();
        let mut record = Record {
            command: format!("cargo xtask bench {suite}{options} --record {runs}"),
            date,
            commit: self.commit.clone(),
            peers,
            runs: reports,
        };
        let commit = self.commit.trim_end_matches('+');
        let suite = suite.replace(' ', "-");
        let place = self
            .into
            .join(format!("{}-{commit}-{suite}.json", record.date));
        if let Ok(json) = fs::read_to_string(&place) {
            let cannot = |error| anyhow!("{}: {error}; move the file first", place.display());
            let mut earlier = Record::parse(&json).map_err(cannot)?;
            earlier.merge(record).map_err(cannot)?;
            record = earlier;
        }
        ensure!(!record.runs.is_empty(), "there is no run");
        fs::create_dir_all(&self.into)?;
        fs::write(&place, serde_json::to_string_pretty(&record)? + "\n")
            .with_context(|| format!("cannot write {}", place.display()))?;
        eprintln!(
            "wrote {}; add it to git, name it in a page, and run `cargo xtask figures`",
            place.display()
        );
        Ok(last)
    }
}

/// Returns the version of iceoryx2, if this program has it.
pub(crate) fn iceoryx2() -> BTreeMap<String, String> {
    let mut peers = BTreeMap::new();
    #[cfg(feature = "iceoryx2")]
    {
        let version = LOCK.split("name = \"iceoryx2\"\nversion = \"").nth(1);
        let version = version.and_then(|rest| rest.split('"').next());
        peers.insert(
            "iceoryx2".to_owned(),
            version.unwrap_or("unknown").to_owned(),
        );
    }
    #[cfg(not(feature = "iceoryx2"))]
    let _ = &mut peers;
    peers
}
