//! `crosshandle channel …`: creates channels, sends and receives items, and watches channels.

mod new;
mod receive;
mod send;
mod watch;

use crate::failure::{EXIT_STATUS_HELP, Failure, Result};
use crate::input::handle_text;
use crate::settings::Settings;
use crosshandle::Access;
use crosshandle::channel::Channel;
use std::time::Duration;

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    /// Create a channel, print its handle, and hold it until interrupted
    #[command(after_help = EXIT_STATUS_HELP)]
    New(new::Args),
    /// Send the lines of standard input, or all of it as one item
    #[command(after_help = EXIT_STATUS_HELP)]
    Send(send::Args),
    /// Receive items, and write them to standard output
    #[command(after_help = EXIT_STATUS_HELP)]
    Receive(receive::Args),
    /// Show the rate of a channel and its members, without joining it
    #[command(after_help = EXIT_STATUS_HELP)]
    Watch(watch::Args),
}

pub(crate) fn run(command: &Command, settings: &Settings) -> Result<()> {
    match command {
        Command::New(args) => new::run(args, settings),
        Command::Send(args) => send::run(args, settings),
        Command::Receive(args) => receive::run(args, settings),
        Command::Watch(args) => watch::run(args, settings),
    }
}

/// The channel that a command opens.
#[derive(clap::Args, Debug)]
struct Opened {
    /// Handle of the channel, or `-` for the first line of standard input
    #[arg(required_unless_present = "name")]
    handle: Option<String>,
    /// Open the channel that a holder keeps under this name
    #[arg(long, value_name = "NAME", conflicts_with = "handle")]
    name: Option<String>,
    /// The device of the channel's slots: host, or another backend and its number, as in cuda:1
    #[arg(long, default_value = "host", value_name = "D")]
    device: String,
}

impl Opened {
    /// Opens the channel. `timeout` is the maximum time for the exporter to reply. `None` uses the
    /// library's default.
    fn open(
        &self,
        access: Access,
        timeout: Option<Duration>,
        settings: &Settings,
    ) -> Result<Channel> {
        let context = settings.context_on(&self.device, timeout)?;
        if let Some(name) = &self.name {
            let holder = settings.holder(None);
            return Ok(Channel::open_name(&context, &holder, name, access)?);
        }
        let handle = self.handle.as_deref();
        let handle = handle.ok_or_else(|| Failure::error("a handle or --name is needed"))?;
        Ok(Channel::open(&context, &handle_text(handle)?.parse()?)?)
    }
}
