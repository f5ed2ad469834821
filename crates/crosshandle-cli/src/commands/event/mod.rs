//! `crosshandle event …`: creates shared events, signals them, and waits for them.

mod new;
mod signal;
mod status;
mod wait;

use crate::failure::{EXIT_STATUS_HELP, Result};
use crate::input::handle_text;
use crate::settings::Settings;
use crosshandle::{Event, EventHandle, EventOptions};
use std::time::Duration;

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    /// Create an event, print its handle, and hold it until interrupted
    #[command(after_help = EXIT_STATUS_HELP)]
    New(new::Args),
    /// Signal an event, and print the signal's number
    #[command(after_help = EXIT_STATUS_HELP)]
    Signal(signal::Args),
    /// Wait for a signal of an event
    #[command(after_help = EXIT_STATUS_HELP)]
    Wait(wait::Args),
    /// Show the state of an event, without waiting
    #[command(after_help = EXIT_STATUS_HELP)]
    Status(status::Args),
}

pub(crate) fn run(command: &Command, settings: &Settings) -> Result<()> {
    match command {
        Command::New(args) => new::run(args, settings),
        Command::Signal(args) => signal::run(args, settings),
        Command::Wait(args) => wait::run(args, settings),
        Command::Status(args) => status::run(args, settings),
    }
}

/// Opens an event. `timeout` is the maximum time for the exporter to reply. `None` uses the
/// library's default.
fn open_event(handle: &str, timeout: Option<Duration>, settings: &Settings) -> Result<Event> {
    let handle: EventHandle = handle_text(handle)?.parse()?;
    let context = settings.context_for_events(timeout)?;
    // A shell command need not react quickly, so do not spin on the processor.
    let options = EventOptions::new().low_power(true);
    Ok(context.open_event_with(&handle, options)?)
}
