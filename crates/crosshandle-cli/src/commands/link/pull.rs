//! `crosshandle pull NAME --from HOST:PORT`.

use super::{Options, failed};
use crate::failure::{ErrorContext as _, Failure, Result};
use crate::output;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::tuning::FILE_CHUNK_BYTES;
use crate::units::bytes;
use crosshandle::holder::HoldOptions;
use crosshandle::{
    AllocationOptions, Command, Context, Device, HolderFault, Memory, MemoryKind, Queue,
};
use crosshandle_link::{Link, RemoteMemory};
use crosshandle_store::{Hash, Manifest};
use std::time::Instant;

/// What the parts of a model are for.
const DATA: &str = "data";
const MANIFEST: &str = "manifest";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The model's name at the other host
    name: String,
    /// The address at which the other host listens, with `link listen --names`
    #[arg(long, value_name = "ADDRESS")]
    from: String,
    /// The name that it gets here [default: the same]
    #[arg(long = "as", value_name = "NAME")]
    as_name: Option<String>,
    /// The device: host, or another backend and its number, as in cuda:1
    #[arg(long, default_value = "host", value_name = "D")]
    device: String,
    /// Publish the name's next version, if something has it already; readers keep the one they have
    #[arg(long)]
    replace: bool,
    /// Take nothing else than the model with this hash
    #[arg(long, value_name = "HASH", value_parser = parse_hash)]
    expect: Option<Hash>,
    #[command(flatten)]
    options: Options,
}

fn parse_hash(text: &str) -> Result<Hash, String> {
    Hash::from_hex(text).map_err(|error| format!("a hash has 64 hexadecimal digits: {error}"))
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let holder = settings.holder(None);
    // Rather than after minutes.
    holder.status()?;
    let name = args.as_name.as_ref().unwrap_or(&args.name);
    let is_taken = match holder.open(name) {
        Err(crosshandle::Error::Holder { fault, .. }) => fault != HolderFault::NoSuchName,
        opened => opened.is_ok(),
    };
    if is_taken && !args.replace {
        return Err(Failure::error(format!(
            "{name} is in use; publish its next version with --replace, or take another name with --as"
        )));
    }
    // Only memory that shares its segment with no other can be handed over.
    let options = settings.context_options().pooling(false);
    let context = Context::with_options(&Device::find(&args.device)?, options)?;
    let link = Link::connect(&*args.from, &context, &args.options.to_link()?).map_err(failed)?;
    let begin = Instant::now();
    let remote = link.open_name(&args.name).map_err(failed)?;
    let part = |role: &str| {
        remote.part(role).map(|part| &part.memory).ok_or_else(|| {
            Failure::error(format!(
                "{} is no model at {}: it has no part '{role}'",
                args.name, args.from
            ))
        })
    };
    let (data, listing) = (part(DATA)?, part(MANIFEST)?);
    let wrong = |why: String| {
        Failure::error(format!(
            "what came from {} is not {}: {why}; nothing was published",
            args.from, args.name
        ))
    };
    let mut text = vec![0; listing.len()];
    listing.read(0, &mut text).map_err(failed)?;
    let hash = blake3::hash(&text);
    if let Some(expected) = args.expect.filter(|expected| *expected != hash) {
        return Err(wrong(format!("its hash is {hash}, not {expected}")));
    }
    let manifest: Manifest = serde_json::from_slice(&text)
        .map_err(|error| wrong(format!("its manifest cannot be read: {error}")))?;
    let local = fetch(&context, data, &manifest.data_hash).map_err(|fault| match fault {
        Fault::Other(failure) => failure,
        Fault::Hash(found) => wrong(format!(
            "its contents have the hash {found}, its manifest says {}",
            manifest.data_hash
        )),
    })?;
    let host = Context::with_options(
        &Device::find("host")?,
        settings.context_options().pooling(false),
    )?;
    let own_listing = host.allocate(text.len())?;
    own_listing.write(0, &text)?;
    let hold = HoldOptions::new()
        .label(hash.to_hex().as_str())
        .replaces(args.replace);
    let parts = [(DATA, &local), (MANIFEST, &own_listing)];
    let handed_over = holder
        .hand_over(name, &parts, hold)
        .context(format_args!("publishing {name}"))?;
    let (len, took) = (data.len() as u64, begin.elapsed().as_secs_f64());
    output::line(format_args!(
        "{name} version {}: {} tensors, {} in {took:.2} s ({:.1} GB/s), hash {hash}",
        handed_over.version,
        manifest.tensors.len(),
        bytes(len),
        len as f64 / took / 1e9,
    ))?;
    if !handed_over.is_safe {
        settings.log("the holder has no successor: what it holds ends with it");
    }
    Ok(())
}

enum Fault {
    Other(Failure),
    /// The contents have another hash.
    Hash(Hash),
}

impl<E: Into<Failure>> From<E> for Fault {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

/// Copies a model's contents here, and checks their hash on the way.
fn fetch(context: &Context, from: &RemoteMemory, expected: &Hash) -> Result<Memory, Fault> {
    let to = context.allocate(from.len())?;
    let mut staging = None;
    if to.bytes().is_err() {
        staging = Some(Staging::new(context)?);
    }
    let progress = Progress::bytes(from.len() as u64, "pulling");
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; FILE_CHUNK_BYTES.min(from.len())];
    for offset in (0..from.len()).step_by(chunk.len().max(1)) {
        let len = chunk.len().min(from.len() - offset);
        let chunk = &mut chunk[..len];
        from.read(offset, chunk).map_err(failed)?;
        hasher.update(chunk);
        match &staging {
            None => to.write(offset, chunk)?,
            Some(staging) => staging.write(&to, offset, chunk)?,
        }
        progress.advance(len as u64);
    }
    match hasher.finalize() {
        found if found == *expected => Ok(to),
        found => Err(Fault::Hash(found)),
    }
}

/// The way into memory of a device that the host cannot access.
struct Staging {
    queue: Queue,
    buffer: Memory,
}

impl Staging {
    fn new(context: &Context) -> crosshandle::Result<Self> {
        let options = AllocationOptions::new(FILE_CHUNK_BYTES).kind(MemoryKind::Host);
        Ok(Self {
            queue: context.create_queue()?,
            buffer: context.allocate_with(options)?,
        })
    }

    fn write(&self, to: &Memory, offset: usize, from: &[u8]) -> crosshandle::Result<()> {
        self.buffer.write(0, from)?;
        let to = to.range(offset..offset + from.len())?;
        self.queue
            .submit(Command::copy(self.buffer.range(..from.len())?, to)?)?;
        self.queue.finish()
    }
}
