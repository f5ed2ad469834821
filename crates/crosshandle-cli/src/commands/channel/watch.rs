//! `crosshandle channel watch HANDLE`.

use super::Opened;
use crate::failure::{ErrorContext as _, Result};
use crate::output;
use crate::settings::Settings;
use crate::units::parse_duration;
use crosshandle::Access;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Interval at which the command checks for signals while it waits.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    channel: Opened,
    /// Time between two lines, as in 5s or 250ms
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = parse_duration)]
    interval: Duration,
    /// Number of lines to print [default: until interrupted]
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let channel = args.channel.open(Access::ReadOnly, None, settings)?;
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_over)).context("catching signals")?;
    }
    output::line("    ITEMS   ITEMS/S  PRODUCERS  CONSUMERS")?;
    let (mut before, mut since) = (channel.published(), Instant::now());
    let mut lines = 0;
    while args.count.is_none_or(|count| lines < count) {
        let end = since + args.interval;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            if is_over.load(Ordering::Relaxed) {
                return Ok(());
            }
            thread::sleep(left.min(SIGNAL_INTERVAL));
        }
        let (now, time) = (channel.published(), Instant::now());
        let rate = now.wrapping_sub(before) as f64 / (time - since).as_secs_f64();
        let (producers, consumers) = channel.members();
        output::line(format_args!(
            "{now:9} {rate:9.0} {producers:10} {consumers:10}"
        ))?;
        (before, since) = (now, time);
        lines += 1;
    }
    Ok(())
}
