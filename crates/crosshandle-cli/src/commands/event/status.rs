//! `crosshandle event status HANDLE`.

use crate::cli::Settings;
use crate::failure::Result;
use crate::output;
use crosshandle::EventStatus;
use serde::Serialize;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Handle of the event, or `-` for the first line of standard input
    handle: String,
    /// Print the status as JSON
    #[arg(long)]
    json: bool,
}

/// The state of an event, as JSON.
#[derive(Serialize)]
struct Status {
    /// Number of the signal submitted last.
    submitted: u64,
    /// Greatest number up to which all signals are finished.
    completed: u64,
    state: State,
    /// Reason for the failure of the latest signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum State {
    Complete,
    Pending,
    Failed,
}

impl From<EventStatus> for Status {
    fn from(status: EventStatus) -> Self {
        let (state, error) = match status.latest {
            None => (State::Pending, None),
            Some(Ok(())) => (State::Complete, None),
            Some(Err(error)) => (State::Failed, Some(error.to_string())),
        };
        Self {
            submitted: status.submitted,
            completed: status.completed,
            state,
            error,
        }
    }
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let event = super::open(&args.handle, settings)?;
    let status = Status::from(event.status());
    if args.json {
        return output::json(&status);
    }
    let mut table = output::table();
    table.set_header(["submitted", "completed", "latest signal"]);
    let latest = match (status.state, &status.error) {
        (State::Complete, _) if status.submitted == 0 => "none yet: complete".to_owned(),
        (State::Complete, _) => "complete".to_owned(),
        (State::Pending, _) => "pending".to_owned(),
        (State::Failed, error) => format!("failed: {}", error.as_deref().unwrap_or("unknown")),
    };
    table.add_row([
        status.submitted.to_string(),
        status.completed.to_string(),
        latest,
    ]);
    output::print_table(&mut table)
}
