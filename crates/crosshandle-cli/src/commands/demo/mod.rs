//! `crosshandle demo`: two processes share memory and two events, verify everything, and measure.
//!
//! The first process is the parent and exports the memory. The second process is its child. Each
//! process creates the event that it signals. If a process dies, the other process's waits for its
//! signals and messages fail at once.

mod first;
mod measure;
mod messages;
mod page;
mod pattern;
mod pin;
mod report;
mod second;
mod signal_pair;
mod stop;

pub(super) use second::run_child;

use crate::failure::Result;
use crate::settings::Settings;
use crate::units::{parse_bytes, parse_duration};
use std::path::PathBuf;
use std::time::Duration;

/// Minimum timeout of each step of the demo, for any size of memory.
///
/// The steps of the default size take less than a second. With less, a demo could fail on a busy
/// machine. With more, a process that is stuck is reported later.
const DEMO_STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// Minimum speed, in bytes per second, of a process that fills or verifies memory. A slower process
/// is treated as stuck.
///
/// Memory and buses are many times faster, so only an emulator comes near this speed.
const DEMO_MIN_BYTES_PER_SECOND: u64 = 32 << 20;

/// Minimum size in bytes of the memory that the demo shares. Each half has room for a few words.
const DEMO_MIN_BYTES: u64 = 4096;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The device: host, or another backend and its number, as in cuda:1
    #[arg(long, default_value = "host", value_name = "D")]
    device: String,
    /// The second process's device, which must be able to map the first process's memory [default:
    /// the same device]
    #[arg(long, value_name = "D")]
    peer_device: Option<String>,
    /// Size of the shared memory
    #[arg(long, default_value = "64MiB", value_name = "S", value_parser = parse_size)]
    size: u64,
    /// Number of times that both processes write and verify all of the memory
    #[arg(long, default_value_t = 10, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Maximum time that a process waits for the other process [default: 10s, and more for large
    /// memory]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Write the results as a page for browsers into a file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let report = first::run(args, settings)?;
    if let Some(path) = &args.html {
        page::write(&report, path)?;
    }
    report.print(args.json)
}

impl Args {
    /// Returns the maximum time that a process waits for the other process's next step.
    fn step_timeout(&self) -> Duration {
        self.timeout.unwrap_or_else(|| {
            DEMO_STEP_TIMEOUT + Duration::from_secs(self.size / DEMO_MIN_BYTES_PER_SECOND)
        })
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    let size = parse_bytes(text)?;
    if size < DEMO_MIN_BYTES {
        return Err(format!("the demo needs at least {DEMO_MIN_BYTES} bytes"));
    }
    if usize::try_from(size).map_or(true, |size| size > isize::MAX as usize) {
        return Err("that is more than a process can address".into());
    }
    Ok(size)
}
