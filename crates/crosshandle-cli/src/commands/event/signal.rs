//! `crosshandle event signal HANDLE`.

use crate::failure::{ErrorContext as _, Failure, Result};
use crate::output;
use crate::settings::Settings;
use crate::units::parse_duration;
use std::time::{Duration, Instant};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Handle of the event, or `-` for the first line of standard input
    handle: String,
    /// Signal until the event's value is N, in one step [default: one signal]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    value: Option<u64>,
    /// Maximum time to wait for earlier signals of other processes [default: forever]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let begin = Instant::now();
    let event = super::open_event(&args.handle, args.timeout, settings)?;
    let number = match args.value {
        Some(value) => {
            event.signal_value(value)?;
            value
        }
        None => event.signal()?,
    };
    // A signal completes only after all earlier signals. If this process ended before its signal is
    // complete, the signal would fail.
    match args.timeout {
        None => event.wait_value(number),
        Some(timeout) => event.wait_value_timeout(number, timeout.saturating_sub(begin.elapsed())),
    }
    .map_err(Failure::from)
    .context(format_args!("signal {number} has not completed"))?;
    output::line(number)
}
