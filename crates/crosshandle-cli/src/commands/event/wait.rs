//! `crosshandle event wait HANDLE`.

use crate::failure::{ErrorContext as _, Failure, Result};
use crate::settings::Settings;
use crate::units::parse_duration;
use std::time::{Duration, Instant};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Handle of the event, or `-` for the first line of standard input
    handle: String,
    /// Wait for signal N, which may be submitted later [default: the latest signal, or the first
    /// signal if there is none yet]
    #[arg(long, value_name = "N", conflicts_with = "next")]
    value: Option<u64>,
    /// Wait for the signal after the latest one
    #[arg(long)]
    next: bool,
    /// Maximum time to wait, as in 5s or 250ms [default: forever]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let begin = Instant::now();
    let event = super::open_event(&args.handle, args.timeout, settings)?;
    let number = match args.value {
        Some(value) => value,
        None if args.next => event.submitted() + 1,
        None => event.latest_or_first(),
    };
    settings.log(format_args!("waiting for signal {number}"));
    match args.timeout {
        None => event.wait_value(number),
        Some(timeout) => event.wait_value_timeout(number, timeout.saturating_sub(begin.elapsed())),
    }
    .map_err(Failure::from)
    .context(format_args!("waiting for signal {number}"))
}
