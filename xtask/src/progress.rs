//! How long the test command takes: an estimate at its start, and the elapsed time in each line.

use std::fs;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::step::say;
use crate::workspace::Workspace;

/// Duration that a first run needs on any number of cores, because many tests wait or use few
/// processes.
const SERIAL: Duration = Duration::from_secs(8 * 60);
/// Processor time of the rest of a first run.
const PARALLEL: Duration = Duration::from_secs(34 * 60);
/// The same two durations for `--quick`.
const QUICK_SERIAL: Duration = Duration::from_secs(60);
const QUICK_PARALLEL: Duration = Duration::from_secs(8 * 60);

static RUN: OnceLock<Run> = OnceLock::new();

/// A run of the test command.
pub(crate) struct Run {
    started: Instant,
    expected: Duration,
    /// The file with the duration of the last run that passed, in seconds.
    file: PathBuf,
}

/// Starts the clock of this process, and prints the expected duration.
pub(crate) fn start(workspace: &Workspace, quick: bool) -> &'static Run {
    let name = if quick { "quick" } else { "whole" };
    let file = workspace.target.join(format!("xtask/duration-{name}"));
    let last = fs::read_to_string(&file).ok();
    let last = last.and_then(|text| text.trim().parse().ok().map(Duration::from_secs));
    let cores = thread::available_parallelism().map_or(1, NonZero::get) as u32;
    let expected = last.unwrap_or(match quick {
        true => QUICK_SERIAL + QUICK_PARALLEL / cores,
        false => SERIAL + PARALLEL / cores,
    });
    let why = match last {
        Some(_) => "as the last run".to_owned(),
        None => format!("the first run, on {cores} cores"),
    };
    say(&format!("expect {} ({why})", clock(expected)));
    RUN.get_or_init(|| Run {
        started: Instant::now(),
        expected,
        file,
    })
}

impl Run {
    /// Remembers the duration for the next run. A failure to write it is ignored.
    pub(crate) fn passed(&self) {
        let seconds = self.started.elapsed().as_secs();
        let _ = fs::write(&self.file, seconds.to_string());
    }
}

/// Returns the elapsed and the expected time of the run, for the end of a line. The text is empty
/// outside of the test command.
pub(crate) fn elapsed() -> String {
    RUN.get().map_or_else(String::new, |run| {
        let (elapsed, expected) = (clock(run.started.elapsed()), clock(run.expected));
        format!(" [{elapsed} of about {expected}]")
    })
}

/// Formats minutes and seconds.
fn clock(duration: Duration) -> String {
    let seconds = duration.as_secs();
    format!("{}:{:02} min", seconds / 60, seconds % 60)
}
