//! The subcommands, one file each.

pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod devices;
pub(crate) mod doctor;
pub(crate) mod event;
pub(crate) mod inspect;
pub(crate) mod man;
pub(crate) mod peer;
pub(crate) mod read;
pub(crate) mod share;

use crate::cli::{Cli, Command, Restarted, RestartedCommand};
use crate::failure::Result;

/// Runs the subcommand of a command line.
pub(crate) fn run(cli: Cli) -> Result<()> {
    let settings = &cli.settings;
    match cli.command {
        Command::Demo(args) => demo::run(&args, settings),
        Command::Devices(args) => devices::run(&args),
        Command::Doctor(args) => doctor::run(&args, settings),
        Command::Share(args) => share::run(&args, settings),
        Command::Read(args) => read::run(&args, settings),
        Command::Event(command) => event::run(&command, settings),
        Command::Inspect(args) => inspect::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}

/// Runs the second process of `demo` or `doctor`.
pub(crate) fn run_restarted(restarted: &Restarted) -> Result<()> {
    let RestartedCommand::Peer(args) = &restarted.command;
    peer::run(args, &restarted.settings)
}
