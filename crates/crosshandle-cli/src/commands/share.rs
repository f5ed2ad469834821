//! `crosshandle share FILE`.

use crate::cli::Settings;
use crate::failure::{Context, Failure, Result};
use crate::output;
use crate::progress::Progress;
use crate::transfer::Transfer;
use crate::units::bytes;
use crosshandle::{Context as DeviceContext, Device, Memory};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Number of bytes to read from the file at a time.
const CHUNK_BYTES: usize = 1 << 20;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The file whose bytes to share
    file: PathBuf,
    /// The device: host, or another backend and its number, as in cuda:1
    #[arg(long, default_value = "host", value_name = "D")]
    device: String,
    /// Let those who open it read only
    #[arg(long)]
    read_only: bool,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let device = Device::find(&args.device)?;
    // Alone in its segment, so that an importer can reach nothing else.
    let options = settings.origin.options().pooling(false);
    let context = DeviceContext::with_options(&device, options)?;
    let memory =
        load(&context, &args.file).context(format_args!("sharing {}", args.file.display()))?;
    let handle = if args.read_only {
        memory.handle_read_only()?
    } else {
        memory.handle()?
    };
    let held = format!("{} of {}", bytes(memory.len() as u64), args.file.display());
    hold(settings, &handle, &held)
    // Everything is dropped here, and the exporter's socket with it.
}

/// Prints a handle alone on the first line, and waits until the user ends the command.
pub(crate) fn hold(settings: &Settings, handle: &dyn std::fmt::Display, what: &str) -> Result<()> {
    // Before the handle is printed, since its reader may send the signal at once.
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("catching signals")?;
    output::line(handle)?;
    settings.say(format_args!("holding {what} until SIGINT or SIGTERM"));
    let signal = signals.forever().next();
    if let Some(signal) = signal {
        settings.say(format_args!("letting go after signal {signal}"));
    }
    Ok(())
}

/// Copies a file into new device memory in chunks.
fn load(context: &DeviceContext, path: &Path) -> Result<Memory> {
    let mut file = File::open(path).context("opening it")?;
    let metadata = file.metadata().context("asking for its size")?;
    if !metadata.is_file() {
        return Err(Failure::error(
            "it is no regular file, so its size is not known; save its contents in one first",
        ));
    }
    if metadata.len() == 0 {
        return Err(Failure::error(
            "the file is empty, and no memory is shared that has no bytes",
        ));
    }
    let len = usize::try_from(metadata.len())
        .map_err(|_| Failure::error("it is larger than what a process can address"))?;
    let allocating = Progress::steps("allocating");
    let memory = context.allocate(len)?;
    drop(allocating);
    let transfer = Transfer::new(context, &memory)?;
    let progress = Progress::bytes(metadata.len(), "loading");
    let mut buffer = vec![0; CHUNK_BYTES.min(len)];
    let mut offset = 0;
    while offset < len {
        let part = &mut buffer[..CHUNK_BYTES.min(len - offset)];
        file.read_exact(part).context(format_args!(
            "reading at byte {offset} of {len} (a file must not change while it is loaded)"
        ))?;
        transfer.write(offset, part)?;
        offset += part.len();
        progress.advance(part.len() as u64);
    }
    drop(transfer);
    Ok(memory)
}
