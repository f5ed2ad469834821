//! `crosshandle share FILE`.

use crate::failure::{ErrorContext as _, Failure, Result};
use crate::output;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::units::bytes;
use crosshandle::{AllocationOptions, Context, Device, Memory};
use rustix::fs::OFlags;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The file to share
    file: PathBuf,
    /// The device: host, or another backend and its number, as in cuda:1
    #[arg(long, default_value = "host", value_name = "D")]
    device: String,
    /// Allow openers only to read
    #[arg(long)]
    read_only: bool,
    /// Hand the memory over to a holder under this name, print its handle, and exit
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let device = Device::find(&args.device)?;
    // Without pooling, the file gets its own segment, so an importer cannot access other memory.
    let options = settings.context_options().pooling(false);
    let context = Context::with_options(&device, options)?;
    let memory =
        load(&context, &args.file).context(format_args!("sharing {}", args.file.display()))?;
    let handle = if args.read_only {
        memory.handle_read_only()?
    } else {
        memory.handle()?
    };
    if let Some(name) = &args.name {
        memory.hand_over(&settings.holder(None), name)?;
        return output::line(handle);
    }
    let description = format!("{} of {}", bytes(memory.len() as u64), args.file.display());
    hold(settings, &handle, &description)
    // The memory, the context and the exporter's socket are dropped here.
}

/// Prints a handle on a line of its own, and waits for SIGINT or SIGTERM.
pub(super) fn hold(
    settings: &Settings,
    handle: &dyn std::fmt::Display,
    description: &str,
) -> Result<()> {
    // Catch signals before printing the handle, because the reader of the handle may send a signal
    // at once.
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("catching signals")?;
    output::line(handle)?;
    settings.log(format_args!(
        "holding {description} until SIGINT or SIGTERM"
    ));
    let signal = signals.forever().next();
    if let Some(signal) = signal {
        settings.log(format_args!("ending after signal {signal}"));
    }
    Ok(())
}

/// Copies a file into new device memory, part by part.
fn load(context: &Context, path: &Path) -> Result<Memory> {
    // Without this flag, opening a FIFO would wait for a writer.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .context("opening it")?;
    let metadata = file.metadata().context("reading its size")?;
    if !metadata.is_file() {
        return Err(Failure::error(
            "it is not a regular file, so its size is unknown; save its contents in a file first",
        ));
    }
    if metadata.len() == 0 {
        return Err(Failure::error(
            "the file is empty, and memory without bytes cannot be shared",
        ));
    }
    let len = usize::try_from(metadata.len())
        .map_err(|_| Failure::error("it is larger than what a process can address"))?;
    let allocating = Progress::steps("allocating");
    // The file will fill all pages, so allocate them now: if memory is short, this call fails,
    // instead of a later access ending the process.
    let memory = context.allocate_with(AllocationOptions::new(len).populate(true))?;
    drop(allocating);
    let progress = Progress::bytes(metadata.len(), "loading");
    let advance = |bytes| progress.advance(bytes as u64);
    memory.read_file(context, .., &file, 0, advance)?;
    Ok(memory)
}
