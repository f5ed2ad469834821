//! `crosshandle event new`.

use crate::commands::share::hold;
use crate::failure::Result;
use crate::settings::Settings;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The device: host, or another backend and its number, as in cuda:1
    #[arg(long, default_value = "host", value_name = "D")]
    device: String,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let context = settings.context_on(&args.device, None)?;
    let event = context.create_event()?;
    hold(settings, &event.handle()?, "an event")
}
