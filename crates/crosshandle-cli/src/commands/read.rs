//! `crosshandle read HANDLE`.

use crate::failure::{ErrorContext as _, Failure, Result};
use crate::input::handle_text;
use crate::new_file::NewFile;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::transfer::Transfer;
use crate::tuning::FILE_CHUNK_BYTES;
use crate::units::parse_bytes;
use crosshandle::handle::{AnyHandle, HandleError, HandleKind};
use crosshandle::virtual_memory::{PhysicalMemory, VirtualRange};
use crosshandle::{Access, MemoryHandle, virtual_memory::PhysicalMemoryHandle};
use std::io::{self, Write};
use std::ops::Range;
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Handle of memory or physical memory, or `-` for the first line of standard input
    handle: String,
    /// The file to write. An existing file is replaced when all bytes are written [default:
    /// standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The first byte to read
    #[arg(long, default_value = "0", value_name = "N", value_parser = parse_bytes)]
    offset: u64,
    /// Number of bytes to read [default: up to the end]
    #[arg(long, value_name = "N", value_parser = parse_bytes)]
    length: Option<u64>,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let handle: AnyHandle = handle_text(&args.handle)?.parse()?;
    match handle {
        AnyHandle::Memory(handle) => read_memory(args, settings, &handle),
        AnyHandle::PhysicalMemory(handle) => read_physical_memory(args, settings, &handle),
        AnyHandle::Event(_) | AnyHandle::Channel(_) => Err(HandleError::WrongKind {
            expected: HandleKind::Memory,
            found: handle.kind(),
        }
        .into()),
    }
}

fn read_memory(args: &Args, settings: &Settings, handle: &MemoryHandle) -> Result<()> {
    let context = settings.context_for(handle.backend(), handle.device(), None)?;
    // Open the memory read-only. The kernel enforces this if the backend supports it.
    let memory = context.open_memory_read_only(handle)?;
    let range = args.range(memory.len())?;
    if let Some(path) = &args.output {
        let doing = format!("writing {}", path.display());
        let new = NewFile::create(path, range.len() as u64).context(&doing)?;
        if new.is_regular() {
            let progress = Progress::bytes(range.len() as u64, "reading");
            let advance = |bytes| progress.advance(bytes as u64);
            let written = memory.write_file(&context, range, new.file(), 0, advance);
            written.context(&doing)?;
            drop(progress);
            return new.finish().context(&doing);
        }
    }
    let transfer = Transfer::new(&context, &memory)?;
    args.copy_to_output(range, |offset, into| transfer.read(offset, into))
}

fn read_physical_memory(
    args: &Args,
    settings: &Settings,
    handle: &PhysicalMemoryHandle,
) -> Result<()> {
    let context = settings.context_for(handle.backend(), handle.device(), None)?;
    let memory = PhysicalMemory::open_read_only(&context, handle)?;
    let addresses = VirtualRange::reserve(&context, memory.len())?;
    addresses.map(0, &memory, ..memory.len(), Access::ReadOnly)?;
    let range = args.range(memory.len())?;
    args.copy_to_output(range, |offset, into| {
        addresses.with_bytes(offset..offset + into.len(), |bytes| bytes.read(0, into))??;
        Ok(())
    })
}

impl Args {
    /// Returns the requested range in memory of `len` bytes.
    fn range(&self, len: usize) -> Result<Range<usize>> {
        let available = len as u64;
        let outside = |end: &str| {
            Failure::error(format!(
                "{end} is not inside the {available} bytes that the handle shares"
            ))
        };
        if self.offset > available {
            return Err(outside(&format!("offset {}", self.offset)));
        }
        let length = self.length.unwrap_or(available - self.offset);
        if length > available - self.offset {
            return Err(outside(&format!(
                "a length of {length} bytes from offset {} on",
                self.offset
            )));
        }
        // Both values are at most `len`.
        Ok(self.offset as usize..(self.offset + length) as usize)
    }

    /// Copies a range of bytes to the file or to standard output.
    fn copy_to_output(
        &self,
        range: Range<usize>,
        read: impl FnMut(usize, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        match &self.output {
            Some(path) => {
                let doing = format!("writing {}", path.display());
                let new = NewFile::create(path, range.len() as u64).context(&doing)?;
                copy(range, read, new.file(), |error| Err(error).context(&doing))?;
                new.finish().context(&doing)
            }
            None => {
                let output = io::stdout().lock();
                copy(range, read, output, |error| Err(Failure::output(&error)))
            }
        }
    }
}

/// Copies a range of bytes part by part. `explain` converts an output error to a failure.
fn copy(
    range: Range<usize>,
    mut read: impl FnMut(usize, &mut [u8]) -> Result<()>,
    mut output: impl Write,
    explain: impl Fn(io::Error) -> Result<()>,
) -> Result<()> {
    let progress = Progress::bytes(range.len() as u64, "reading");
    let mut buffer = vec![0; FILE_CHUNK_BYTES.min(range.len())];
    let mut offset = range.start;
    while offset < range.end {
        let part = &mut buffer[..FILE_CHUNK_BYTES.min(range.end - offset)];
        read(offset, part)?;
        if let Err(error) = output.write_all(part) {
            return explain(error);
        }
        offset += part.len();
        progress.advance(part.len() as u64);
    }
    output.flush().or_else(explain)
}
