//! `crosshandle demo`: two processes share memory and two events, verify everything, and measure.
//!
//! Each process creates the event that it signals. A wait for a future signal then fails as soon as
//! the signalling process dies, and so does a message over the pipes: neither process waits for a
//! dead one.

mod first;
mod measure;
mod messages;
mod pattern;
mod pin;
mod report;
mod second;
mod stop;
mod turns;

pub(crate) use second::answer;

use crate::cli::Settings;
use crate::failure::Result;
use crate::units::{parse_bytes, parse_duration};
use std::time::Duration;

/// Smallest size of the memory in bytes: room for two halves with words in them.
const MIN_SIZE_BYTES: u64 = 4096;

/// Lowest speed of filling or verifying memory, in bytes per second. If a side is slower, the other
/// side's wait times out.
const MIN_BYTES_PER_SECOND: u64 = 32 << 20;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The device: host, or another backend and its number, as in cuda:1
    #[arg(long, default_value = "host", value_name = "D")]
    device: String,
    /// The second process's device, which can map the first one's memory [default: the same]
    #[arg(long, value_name = "D")]
    peer_device: Option<String>,
    /// How much memory to share
    #[arg(long, default_value = "64MiB", value_name = "S", value_parser = parse_size)]
    size: u64,
    /// How often both processes write and verify all of it
    #[arg(long, default_value_t = 10, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long one process waits for the other to go on [default: 10s, and more for much memory]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    first::run(args, settings)?.print(args.json)
}

impl Args {
    fn time_limit(&self) -> Duration {
        self.timeout
            .unwrap_or_else(|| Duration::from_secs(10 + self.size / MIN_BYTES_PER_SECOND))
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    let size = parse_bytes(text)?;
    if size < MIN_SIZE_BYTES {
        return Err(format!("the demo needs {MIN_SIZE_BYTES} bytes at least"));
    }
    if usize::try_from(size).map_or(true, |size| size > isize::MAX as usize) {
        return Err("that is more than a process can address".into());
    }
    Ok(size)
}
