//! The subcommands, a file each.

mod demo;
mod devices;
mod doctor;
mod event;
mod gc;
mod holder;
mod link;
mod peer;
mod ps;
mod read;
mod share;
mod texts;
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
    /// Check this machine: what works, and what to do about the rest
    #[command(after_help = doctor::AFTER_HELP)]
    Doctor(doctor::Args),
    /// Put a file's bytes into device memory, print its handle, and hold it
    #[command(after_help = EXIT_STATUS_HELP)]
    Share(share::Args),
    /// Write the bytes of shared memory to a file or to standard output
    #[command(after_help = EXIT_STATUS_HELP)]
    Read(read::Args),
    /// Create, signal and wait on shared events
    #[command(subcommand, after_help = EXIT_STATUS_HELP)]
    Event(event::Command),
    /// Reach what processes of other hosts share
    #[command(subcommand, after_help = EXIT_STATUS_HELP)]
    Link(link::Command),
    /// List who shares what on this machine, who has it open, and who waits for whom
    #[command(after_help = ps::AFTER_HELP)]
    Ps(ps::Args),
    /// Watch who shares what, how much is copied and signalled, and which waits are stuck
    #[command(after_help = top::AFTER_HELP)]
    Top(top::Args),
    /// Keep what programs hand over when they have ended, with a successor that outlives this process
    #[command(after_help = holder::HOLD_AFTER_HELP)]
    Hold(holder::HoldArgs),
    /// Load a model's safetensors into device memory, and hand it over to the holder
    #[command(after_help = EXIT_STATUS_HELP)]
    Load(holder::LoadArgs),
    /// Take the hash of a held model's contents again, and compare
    #[command(after_help = EXIT_STATUS_HELP)]
    Verify(holder::VerifyArgs),
    /// Copy a model from another host's holder to this host's, and check its hash on the way
    #[command(after_help = EXIT_STATUS_HELP)]
    Pull(link::PullArgs),
    /// List the names of what a holder keeps
    #[command(after_help = EXIT_STATUS_HELP)]
    Ls(holder::ListArgs),
    /// Have a holder let go of names; who has their memory open keeps it
    #[command(after_help = EXIT_STATUS_HELP)]
    Rm(holder::RemoveArgs),
    /// Protect a name from being removed or replaced
    #[command(after_help = EXIT_STATUS_HELP)]
    Pin(holder::PinArgs),
    /// End the epoch of a held name's writer, once that has provably ended
    #[command(after_help = holder::FENCE_AFTER_HELP)]
    Fence(holder::FenceArgs),
    /// Remove the sockets of processes that were killed
    #[command(after_help = EXIT_STATUS_HELP)]
    Gc(gc::Args),
    /// Explain a handle in words, without opening it
    Inspect(texts::inspect::Args),
    /// Print the completions of a shell
    Completions(texts::completions::Args),
    /// Print the manual page, or write the pages of all commands into a directory
    Man(texts::man::Args),
}

impl Command {
    /// Runs the command. `command_line` describes all commands, for completions and manual pages.
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
            Self::Link(command) => link::run(&command, settings),
            Self::Ps(args) => ps::run(&args, settings),
            Self::Top(args) => top::run(&args, settings),
            Self::Hold(args) => holder::hold(&args, settings),
            Self::Load(args) => holder::load(&args, settings),
            Self::Verify(args) => holder::verify(&args, settings),
            Self::Pull(args) => link::pull(&args, settings),
            Self::Ls(args) => holder::list(&args, settings),
            Self::Rm(args) => holder::remove(&args, settings),
            Self::Pin(args) => holder::pin(&args, settings),
            Self::Fence(args) => holder::fence(&args, settings),
            Self::Gc(args) => gc::run(&args, settings),
            Self::Inspect(args) => texts::inspect::run(&args),
            Self::Completions(args) => texts::completions::run(&args, command_line()),
            Self::Man(args) => texts::man::run(&args, command_line()),
        }
    }
}

/// A command that this program gives itself when it starts a child process.
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
