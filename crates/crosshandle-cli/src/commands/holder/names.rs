//! `crosshandle ls`, `rm` and `pin`.

use crate::failure::Result;
use crate::input::token::ShownToken;
use crate::output;
use crate::settings::Settings;
use crate::units::bytes;
use crosshandle::holder::{HeldName, Recovered};
use serde::Serialize;

#[derive(clap::Args, Debug)]
pub(crate) struct ListArgs {
    /// Print the names as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct RemoveArgs {
    /// The names to remove
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    token: ShownToken,
}

#[derive(clap::Args, Debug)]
pub(crate) struct PinArgs {
    /// The name to protect
    name: String,
    /// Remove the protection
    #[arg(long)]
    undo: bool,
    #[command(flatten)]
    token: ShownToken,
}

/// A name, in the form of the JSON output.
#[derive(Serialize)]
struct Listed<'a> {
    name: &'a str,
    version: u64,
    bytes: u64,
    pinned: bool,
    has_tokens: bool,
    created_unix_s: u64,
    epoch: u64,
    writer: Option<u32>,
    /// How the contents were checked, if a reader has restored the name.
    recovered: Option<&'static str>,
    label: &'a str,
    parts: Vec<ListedPart<'a>>,
}

#[derive(Serialize)]
struct ListedPart<'a> {
    role: &'a str,
    device: &'a str,
    bytes: u64,
}

pub(crate) fn list(args: &ListArgs, settings: &Settings) -> Result<()> {
    let names = settings.holder(None).list()?;
    if args.json {
        let all: Vec<_> = names.iter().map(listed).collect();
        return output::json(&all);
    }
    if names.is_empty() {
        settings.log("nothing is held");
        return Ok(());
    }
    let mut table = output::table();
    table.set_header(["NAME", "VERSION", "BYTES", "DEVICE", "PARTS", "STATE"]);
    for name in &names {
        let mut devices: Vec<_> = name.parts.iter().map(|part| &*part.device).collect();
        devices.dedup();
        let mut state = Vec::new();
        state.extend(name.pinned.then(|| "pinned".to_owned()));
        state.extend(name.has_tokens.then(|| "token".to_owned()));
        state.extend((name.epoch > 0).then(|| match name.writer {
            Some(pid) => format!("epoch {} of {pid}", name.epoch),
            None => format!("epoch {}", name.epoch),
        }));
        state.extend(recovered(name).map(|how| match how {
            "same files" => "recovered".to_owned(),
            how => format!("recovered, {how}"),
        }));
        let cells = [
            name.name.clone(),
            name.version.to_string(),
            bytes(sum(name)),
            devices.join(", "),
            name.parts.len().to_string(),
            state.join(", "),
        ];
        output::add_row(&mut table, cells);
    }
    for column in [1, 2, 4] {
        output::align_right(&mut table, column);
    }
    output::print_table(&mut table)
}

pub(crate) fn remove(args: &RemoveArgs, settings: &Settings) -> Result<()> {
    let holder = settings.holder(args.token.get()?.as_deref());
    for name in &args.names {
        holder.remove(name)?;
    }
    Ok(())
}

pub(crate) fn pin(args: &PinArgs, settings: &Settings) -> Result<()> {
    let holder = settings.holder(args.token.get()?.as_deref());
    Ok(holder.pin(&args.name, !args.undo)?)
}

/// Returns how the contents of a name were checked, if a reader has restored it.
fn recovered(name: &HeldName) -> Option<&'static str> {
    name.recovered.map(|how| match how {
        Recovered::SameFiles => "same files",
        _ => "unverified",
    })
}

fn sum(name: &HeldName) -> u64 {
    let parts = name.parts.iter().map(|part| part.bytes);
    parts.fold(0, u64::saturating_add)
}

fn listed(name: &HeldName) -> Listed<'_> {
    Listed {
        name: &name.name,
        version: name.version,
        bytes: sum(name),
        pinned: name.pinned,
        has_tokens: name.has_tokens,
        created_unix_s: name.created_unix_s,
        epoch: name.epoch,
        writer: name.writer,
        recovered: recovered(name),
        label: &name.label,
        parts: name
            .parts
            .iter()
            .map(|part| ListedPart {
                role: &part.role,
                device: &part.device,
                bytes: part.bytes,
            })
            .collect(),
    }
}
