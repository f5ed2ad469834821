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

/// A held name, in the form of the JSON output.
#[derive(Serialize)]
struct Listed<'a> {
    bytes: u64,
    #[serde(flatten)]
    name: &'a HeldName,
}

pub(crate) fn list(args: &ListArgs, settings: &Settings) -> Result<()> {
    let names = settings.holder(None).list()?;
    if args.json {
        let listed = |name| Listed {
            bytes: HeldName::bytes(name),
            name,
        };
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
        state.extend(name.recovered.map(|how| match how {
            Recovered::SameFiles => "recovered".to_owned(),
            how => format!("recovered, {how}"),
        }));
        let cells = [
            name.name.clone(),
            name.version.to_string(),
            bytes(name.bytes()),
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
