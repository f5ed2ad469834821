//! The subcommands, one file each.

mod channel;
mod demo;
mod devices;
mod doctor;
mod event;
mod gc;
mod holder;
#[cfg(feature = "links")]
mod link;
mod peer;
mod ps;
mod read;
mod share;
mod texts;
#[cfg(feature = "top")]
mod top;

use crate::failure::{EXIT_STATUS_HELP, Result};
use crate::settings::Settings;

/// A subcommand of `crosshandle`, with its arguments.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    /// Share memory and events with a second process, verify everything, and measure
    #[command(after_help = EXIT_STATUS_HELP)]
    Demo(demo::Args),
    /// List the devices
    Devices(devices::Args),
    /// Check this machine: what works, and how to fix the rest
    #[command(after_help = doctor::AFTER_HELP)]
    Doctor(doctor::Args),
    /// Copy a file into device memory, print its handle, and hold the memory until interrupted
    #[command(after_help = EXIT_STATUS_HELP)]
    Share(share::Args),
    /// Write the bytes of shared memory to a file or to standard output
    #[command(after_help = EXIT_STATUS_HELP)]
    Read(read::Args),
    /// Create, signal and wait on shared events
    #[command(subcommand, after_help = EXIT_STATUS_HELP)]
    Event(event::Command),
    /// Create channels, send and receive items, and watch channels
    #[command(subcommand, after_help = EXIT_STATUS_HELP)]
    Channel(channel::Command),
    #[cfg(feature = "links")]
    /// Use memory and events of other hosts
    #[command(subcommand, after_help = EXIT_STATUS_HELP)]
    Link(link::Command),
    /// List shared objects, the processes that share or use them, and waits for other processes
    #[command(after_help = ps::AFTER_HELP)]
    Ps(ps::Args),
    #[cfg(feature = "top")]
    /// Watch shared objects, the rates of copies and signals, and stuck waits
    #[command(after_help = top::AFTER_HELP)]
    Top(top::Args),
    /// Keep memory that programs hand over, even after they end, with a successor as a backup
    #[command(after_help = holder::HOLD_AFTER_HELP)]
    Hold(holder::HoldArgs),
    /// Load a model's safetensors into device memory, and hand it over to the holder
    #[command(after_help = EXIT_STATUS_HELP)]
    Load(holder::LoadArgs),
    /// Hash the contents of a held model again, and compare the hash
    #[command(after_help = EXIT_STATUS_HELP)]
    Verify(holder::VerifyArgs),
    #[cfg(feature = "links")]
    /// Copy a model from another host's holder to the holder of this host, and check its hash
    #[command(after_help = EXIT_STATUS_HELP)]
    Pull(link::PullArgs),
    /// List the names that a holder keeps
    #[command(after_help = EXIT_STATUS_HELP)]
    Ls(holder::ListArgs),
    /// Remove names from a holder. Processes that have the memory open keep it
    #[command(after_help = EXIT_STATUS_HELP)]
    Rm(holder::RemoveArgs),
    /// Protect a name from being removed or replaced
    #[command(after_help = EXIT_STATUS_HELP)]
    Pin(holder::PinArgs),
    /// End the epoch of a held name's writer, if the writer has provably ended
    #[command(after_help = holder::REVOKE_AFTER_HELP)]
    Revoke(holder::RevokeArgs),
    /// Remove the sockets of processes that were killed
    #[command(after_help = EXIT_STATUS_HELP)]
    Gc(gc::Args),
    /// Explain a handle in words, without opening it
    Inspect(texts::inspect::Args),
    #[cfg(feature = "texts")]
    /// Print the completion script for a shell
    Completions(texts::completions::Args),
    #[cfg(feature = "texts")]
    /// Print the manual page, or write the pages of all commands into a directory
    Man(texts::man::Args),
}

impl Command {
    /// Runs the command. `command_line` describes all commands, for completions and manual pages.
    #[cfg_attr(not(feature = "texts"), expect(unused_variables))]
    pub(crate) fn run(
        self,
        settings: &Settings,
        command_line: impl FnOnce() -> clap::Command,
    ) -> Result<()> {
        match self {
            Self::Demo(args) => demo::run(&args, settings),
            Self::Devices(args) => devices::run(&args),
            Self::Doctor(args) => doctor::run(&args, settings),
            Self::Share(args) => share::run(&args, settings),
            Self::Read(args) => read::run(&args, settings),
            Self::Event(command) => event::run(&command, settings),
            Self::Channel(command) => channel::run(&command, settings),
            #[cfg(feature = "links")]
            Self::Link(command) => link::run(&command, settings),
            Self::Ps(args) => ps::run(&args, settings),
            #[cfg(feature = "top")]
            Self::Top(args) => top::run(&args, settings),
            Self::Hold(args) => holder::hold(&args, settings),
            Self::Load(args) => holder::load(&args, settings),
            Self::Verify(args) => holder::verify(&args, settings),
            #[cfg(feature = "links")]
            Self::Pull(args) => link::pull(&args, settings),
            Self::Ls(args) => holder::list(&args, settings),
            Self::Rm(args) => holder::remove(&args, settings),
            Self::Pin(args) => holder::pin(&args, settings),
            Self::Revoke(args) => holder::revoke(&args, settings),
            Self::Gc(args) => gc::run(&args, settings),
            Self::Inspect(args) => texts::inspect::run(&args),
            #[cfg(feature = "texts")]
            Self::Completions(args) => texts::completions::run(&args, command_line()),
            #[cfg(feature = "texts")]
            Self::Man(args) => texts::man::run(&args, command_line()),
        }
    }
}

/// A command that this program passes to itself when it starts a child process.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum ChildCommand {
    /// The second process
    Peer(peer::Args),
    /// The second process of a holder
    Successor(holder::SuccessorArgs),
}

impl ChildCommand {
    /// Runs the child process's part.
    pub(crate) fn run(self, settings: &Settings) -> Result<()> {
        match self {
            Self::Peer(args) => peer::run(&args, settings),
            Self::Successor(args) => holder::succeed(&args, settings),
        }
    }
}
