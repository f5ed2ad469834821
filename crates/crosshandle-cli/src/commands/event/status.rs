//! `crosshandle event status HANDLE`.

use crate::failure::Result;
use crate::output;
use crate::settings::Settings;
use crosshandle::event::EventStatus;
use serde::Serialize;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Handle of the event, or `-` for the first line of standard input
    handle: String,
    /// Print the status as JSON
    #[arg(long)]
    json: bool,
}

/// Status of an event, in the form of the JSON output.
#[derive(Serialize)]
struct Status {
    /// Number of the latest submitted signal.
    submitted: u64,
    /// Largest number up to which all signals have completed or failed.
    completed: u64,
    /// State of the latest signal.
    state: SignalState,
    /// Reason why the latest signal failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
/// State of an event's latest signal.
enum SignalState {
    /// No signal has been submitted.
    None,
    Complete,
    Pending,
    Failed,
}

impl From<EventStatus> for Status {
    fn from(status: EventStatus) -> Self {
        let (state, error) = match status.latest {
            None if status.submitted == 0 => (SignalState::None, None),
            None => (SignalState::Pending, None),
            Some(Ok(())) => (SignalState::Complete, None),
            Some(Err(error)) => (SignalState::Failed, Some(error.to_string())),
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
    let event = super::open_event(&args.handle, None, settings)?;
    let status = Status::from(event.status());
    if args.json {
        return output::json(&status);
    }
    let mut table = output::table();
    table.set_header(["submitted", "completed", "latest signal"]);
    let latest = match (status.state, &status.error) {
        (SignalState::None, _) => "none".to_owned(),
        (SignalState::Complete, _) => "complete".to_owned(),
        (SignalState::Pending, _) => "pending".to_owned(),
        (SignalState::Failed, error) => {
            format!("failed: {}", error.as_deref().unwrap_or("unknown"))
        }
    };
    let (submitted, completed) = (status.submitted.to_string(), status.completed.to_string());
    output::add_row(&mut table, [submitted, completed, latest]);
    output::print_table(&mut table)
}
