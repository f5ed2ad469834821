//! `crosshandle event …`.

mod new;
mod signal;
mod status;
mod wait;

use crate::cli::{AFTER_HELP, Settings};
use crate::failure::Result;
use crate::origin::handle_text;
use crosshandle::{Event, EventHandle, EventOptions};

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    /// Create an event, print its handle, and hold it
    #[command(after_help = AFTER_HELP)]
    New(new::Args),
    /// Signal an event, and print the signal's number
    #[command(after_help = AFTER_HELP)]
    Signal(signal::Args),
    /// Wait for a signal of an event
    #[command(after_help = AFTER_HELP)]
    Wait(wait::Args),
    /// Tell where an event stands, without waiting
    #[command(after_help = AFTER_HELP)]
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

/// Opens an event. The event keeps its context alive.
fn open(handle: &str, settings: &Settings) -> Result<Event> {
    let handle: EventHandle = handle_text(handle)?.parse()?;
    let context = settings
        .origin
        .context_for(handle.backend(), handle.device())?;
    // With low power: a shell command is not urgent, and other programs may need the processor.
    let options = EventOptions::new().low_power(true);
    Ok(context.open_event_with(&handle, options)?)
}
