//! `crosshandle ps`.

mod filter;
pub(super) mod silent;
pub(super) mod text;
mod tree;
pub(super) mod waits;

use crate::failure::{Failure, Result};
use crate::output;
use crate::settings::Settings;
use crate::units::parse_duration;
use crosshandle::report::{self, ProcessReport};
use filter::Filter;
use serde::Serialize;
use silent::SilentExporter;
use std::time::Duration;

pub(super) const AFTER_HELP: &str = "\
Each wait is shown with the process that has submitted the awaited signal and has not finished it. If
that process is waiting too, the line continues up to the process at the end of the chain.

Exit status:
  0  done
  1  an error, or no process matches
  2  wrong usage
  3  a process did not reply in time: it is listed, without its objects";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print an array of reports as JSON
    #[arg(long)]
    json: bool,
    /// Show only objects that this process shares or uses. May be repeated
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// Show only programs, contexts, memory and events with TEXT in their name
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// List all objects, not only the first ones of each context
    #[arg(short, long)]
    all: bool,
    /// Maximum time for a process to reply
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    timeout: Duration,
}

/// The replies of all exporters.
#[derive(Default)]
pub(super) struct Answers {
    pub(super) reports: Vec<ProcessReport>,
    pub(super) silent: Vec<SilentExporter>,
}

impl Answers {
    /// Queries all exporters of this user.
    pub(super) fn ask(settings: &Settings, timeout: Duration) -> Self {
        let mut answers = Self::default();
        for answer in report::exporters(&settings.socket_directories(), timeout) {
            match answer.map_err(SilentExporter::new) {
                Ok(report) => answers.reports.push(report),
                Err(Some(silent)) => answers.silent.push(silent),
                Err(None) => {}
            }
        }
        answers
    }
}

/// An element of the JSON array.
#[derive(Serialize)]
#[serde(untagged)]
enum Element<'a> {
    Report(&'a ProcessReport),
    Silent(&'a SilentExporter),
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let all = Answers::ask(settings, args.timeout);
    let filter = Filter::new(&args.pid, args.name.as_deref());
    let reports: Vec<_> = all
        .reports
        .iter()
        .filter_map(|report| filter.apply(report))
        .collect();
    let silent: Vec<_> = all
        .silent
        .iter()
        .filter(|silent| filter.admits_silent(silent))
        .collect();
    if args.json {
        let reports = reports.iter().map(Element::Report);
        let silent = silent.iter().map(|silent| Element::Silent(silent));
        output::json(&reports.chain(silent).collect::<Vec<_>>())?;
    } else {
        // Search all reports for the causes of waits, even if only some reports are shown.
        tree::print(&reports, &all.reports, &silent, args.all)?;
    }
    if filter.is_any() && reports.is_empty() && silent.is_empty() {
        return Err(Failure::error("no process matches"));
    }
    let late: Vec<_> = silent.iter().filter(|silent| silent.is_late()).collect();
    match late[..] {
        [] => Ok(()),
        [late] => Err(Failure::timed_out(format!(
            "{late}; its objects are not listed"
        ))),
        _ => Err(Failure::timed_out(format!(
            "{} processes do not answer; what they share is not listed",
            late.len()
        ))),
    }
}
