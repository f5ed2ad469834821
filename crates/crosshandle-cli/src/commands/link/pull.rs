//! `crosshandle pull NAME --from HOST:PORT`.

use super::{Options, failed};
use crate::failure::{ErrorContext as _, Failure, Result};
use crate::output;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::tuning::FILE_CHUNK_BYTES;
use crate::units::bytes;
use crosshandle::holder::HoldOptions;
use crosshandle::holder::HolderFault;
use crosshandle_link::RemoteMemory;
use crosshandle_store::{Hash, LoadOptions, Manifest, Store};
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::Instant;

/// Roles of the parts of a model in a holder.
const DATA: &str = "data";
const MANIFEST: &str = "manifest";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The name of the model on the remote host
    name: String,
    /// The address at which the remote host listens, with `link listen --names`, or its name in the
    /// file of --hosts
    #[arg(long, value_name = "ADDRESS")]
    from: String,
    /// The name of the copy on this host [default: the same name]
    #[arg(long = "as", value_name = "NAME")]
    as_name: Option<String>,
    /// The device: host, or another backend and its number, as in cuda:1
    #[arg(long, default_value = "host", value_name = "D")]
    device: String,
    /// Publish the next version of the name if it is already in use. Readers keep the version that
    /// they have open
    #[arg(long)]
    replace: bool,
    /// Accept only the model with this hash
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
    // Check the holder before copying, which may take minutes.
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
    let context = super::host(settings)?;
    let link = args.options.connect(&args.from, &context)?;
    let begin = Instant::now();
    let remote = link.open_name(&args.name).map_err(failed)?;
    let part = |role: &str| {
        remote.part(role).map(|part| &part.memory).ok_or_else(|| {
            Failure::error(format!(
                "{} is not a model at {}: it has no part '{role}'",
                args.name, args.from
            ))
        })
    };
    let (data, listing) = (part(DATA)?, part(MANIFEST)?);
    let wrong = |why: String| {
        Failure::error(format!(
            "the data from {} is not {}: {why}; nothing was published",
            args.from, args.name
        ))
    };
    let text = read_listing(listing)?;
    let hash = blake3::hash(&text);
    if let Some(expected) = args.expect.filter(|expected| *expected != hash) {
        return Err(wrong(format!("its hash is {hash}, not {expected}")));
    }
    let manifest = Manifest::read(&text, data.len() as u64).map_err(wrong)?;
    let is_on_host = args.device == "host";
    check_memory(&manifest, is_on_host).map_err(wrong)?;
    let file = fetch(data, &manifest)?;
    let mut store = Store::new();
    if let Some(directory) = &settings.socket_dir {
        store = store.socket_dir(directory);
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // The store hashes the received bytes, and compares the hash with the remote host's manifest.
    let options = LoadOptions::new().expecting(hash);
    let loaded = store
        .load(&args.device, &[path.into()], &options)
        .map_err(|error| wrong(error.to_string()))?;
    drop(file);
    let hold = HoldOptions::new().replaces(args.replace);
    let handed_over = loaded
        .publish(name, hold)
        .map_err(Failure::from)
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
        settings.log("the holder has no successor: its objects are lost when it ends");
    }
    Ok(())
}

/// Reads the manifest. Allocates memory only as bytes arrive, because the remote host may claim any
/// length.
fn read_listing(listing: &RemoteMemory) -> Result<Vec<u8>> {
    if listing.len() > Manifest::MAX_BYTES {
        return Err(Failure::error(format!(
            "its manifest claims to have {}, but the maximum is {}",
            bytes(listing.len() as u64),
            bytes(Manifest::MAX_BYTES as u64)
        )));
    }
    let mut text = Vec::new();
    let mut chunk = vec![0; FILE_CHUNK_BYTES];
    for start in (0..listing.len()).step_by(FILE_CHUNK_BYTES) {
        let part = &mut chunk[..FILE_CHUNK_BYTES.min(listing.len() - start)];
        listing.read(start, part).map_err(failed)?;
        text.extend_from_slice(part);
    }
    Ok(text)
}

/// Checks that this host has enough memory for a model: for the received copy, and with
/// `is_on_host` also for the copy that the holder keeps.
fn check_memory(manifest: &Manifest, is_on_host: bool) -> std::result::Result<(), String> {
    let sizes = manifest.tensors.values().map(|tensor| tensor.bytes);
    let total = sizes.fold(0, u64::saturating_add);
    let needed = total.saturating_mul(1 + u64::from(is_on_host));
    match crosshandle::report::memory_limit() {
        Some(limit) if limit.headroom < needed => {
            Err(format!("it needs {} of memory: {limit}", bytes(needed)))
        }
        _ => Ok(()),
    }
}

/// Copies a model's tensors into a safetensors file in memory.
fn fetch(from: &RemoteMemory, manifest: &Manifest) -> Result<File> {
    let mut tensors: Vec<_> = manifest.tensors.iter().collect();
    tensors.sort_by_key(|(name, tensor)| (tensor.offset, tensor.bytes, *name));
    let mut header = Map::new();
    if !manifest.metadata.is_empty() {
        header.insert("__metadata__".into(), json!(manifest.metadata));
    }
    let mut end = 0u64;
    for (name, tensor) in &tensors {
        let start = end;
        end = start.saturating_add(tensor.bytes);
        header.insert(
            (*name).clone(),
            json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}),
        );
    }
    if end > from.len() as u64 {
        return Err(Failure::error(
            "its manifest describes more bytes of tensors than the model has",
        ));
    }
    let header = Value::Object(header).to_string();
    let doing = "keeping a model in memory";
    let mut file = File::from(memfd_create("pulled", MemfdFlags::CLOEXEC).context(doing)?);
    file.write_all(&(header.len() as u64).to_le_bytes())
        .context(doing)?;
    file.write_all(header.as_bytes()).context(doing)?;
    let progress = Progress::bytes(end, "pulling");
    let mut chunk = vec![0; FILE_CHUNK_BYTES];
    for (_, tensor) in tensors {
        let mut at = tensor.offset;
        let last = at.saturating_add(tensor.bytes);
        while at < last {
            let len = (last - at).min(chunk.len() as u64) as usize;
            let offset =
                usize::try_from(at).map_err(|_| Failure::error("the offset is too large"))?;
            from.read(offset, &mut chunk[..len]).map_err(failed)?;
            file.write_all(&chunk[..len]).context(doing)?;
            progress.advance(len as u64);
            at += len as u64;
        }
    }
    Ok(file)
}
