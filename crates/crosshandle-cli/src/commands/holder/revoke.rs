//! `crosshandle revoke NAME`.

use crate::failure::Result;
use crate::input::token::ShownToken;
use crate::output;
use crate::settings::Settings;
use crate::units::parse_duration;
use crosshandle::holder::ClaimOptions;
use std::time::Duration;

pub(crate) const AFTER_HELP: &str = "\
Begins a new epoch of a name's memory, in which no process writes, when its writer has provably ended. This means \
that its process and all processes forked from it are gone, and that no other process can write. The next program \
that claims the name may then write at once. Earlier handles for writing no longer open anything. Readers are notified.

Exit status:
  0  done
  1  the memory may still be written, or another error, explained on standard error
  2  wrong usage";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The name whose writer's epoch is ended
    name: String,
    /// Maximum time to wait for the end of the writer, as in 5s or 250ms [default: do not wait]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    wait: Option<Duration>,
    /// End the epoch even if the writer may still write
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    token: ShownToken,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let options = ClaimOptions::new()
        .wait(args.wait.unwrap_or_default())
        .force(args.force);
    let lease = settings
        .holder(args.token.get()?.as_deref())
        .claim(&args.name, &options)?;
    let epoch = lease.epoch();
    lease.end()?;
    let name = &args.name;
    match args.force {
        true => output::line(format_args!(
            "{name} epoch {epoch}: forced: the previous writer may still write"
        )),
        false => output::line(format_args!("{name} epoch {epoch}: no process writes")),
    }
}
