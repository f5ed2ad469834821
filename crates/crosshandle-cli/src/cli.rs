//! The command line.

use crate::commands::{completions, demo, devices, doctor, event, inspect, man, peer, read, share};
use crate::origin::Origin;
use clap::{Parser, Subcommand};
use std::io::{self, Write};

const LONG_ABOUT: &str = "\
Shares device memory and synchronisation events between processes, through handles.

One process gets a handle to memory or to an event, and holds the object. The handle is one word; \
send it in any way. Another process of the same machine opens it and holds the same object: the \
same bytes, the same state, no copy.

A handle is a capability: it contains a secret of its exporter. Where other users must not see it \
in the list of processes, give `-` as HANDLE and the handle on standard input.";

pub(crate) const AFTER_HELP: &str = "\
Exit status:
  0  done
  1  an error, explained on standard error
  2  wrong usage
  3  timed out
  4  the process at the other end has ended";

/// Shares memory and events between processes, through handles
#[derive(Parser, Debug)]
#[command(name = "crosshandle", version, long_about = LONG_ABOUT, after_help = AFTER_HELP)]
#[command(
    propagate_version = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) settings: Settings,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The options that every command takes.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Settings {
    #[command(flatten)]
    pub(crate) origin: Origin,
    /// Say on standard error what is going on
    #[arg(short, long, global = true)]
    verbose: bool,
}

impl Settings {
    /// Prints a line on standard error if `--verbose` was given.
    pub(crate) fn say(&self, what: impl std::fmt::Display) {
        if self.verbose {
            let _ = writeln!(io::stderr(), "crosshandle: {what}");
        }
    }
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Share memory and events with a second process, verify everything, and measure
    #[command(after_help = AFTER_HELP)]
    Demo(demo::Args),
    /// List the devices
    Devices(devices::Args),
    /// Check this machine: what works, and what to do about the rest
    #[command(after_help = doctor::AFTER_HELP)]
    Doctor(doctor::Args),
    /// Put a file's bytes into device memory, print its handle, and hold it
    #[command(after_help = AFTER_HELP)]
    Share(share::Args),
    /// Write the bytes of shared memory to a file or to standard output
    #[command(after_help = AFTER_HELP)]
    Read(read::Args),
    /// Create, signal and wait on shared events
    #[command(subcommand, after_help = AFTER_HELP)]
    Event(event::Command),
    /// Explain a handle in words, without opening it
    Inspect(inspect::Args),
    /// Print the completions of a shell
    Completions(completions::Args),
    /// Print the manual page, or write the pages of all commands into a directory
    Man(man::Args),
}

/// The command line with which the command starts itself as the second process of `demo` and
/// `doctor`. Not a subcommand of [`Cli`], so that manual pages and completions do not show it.
#[derive(Parser, Debug)]
#[command(name = "crosshandle")]
pub(crate) struct Restarted {
    #[command(flatten)]
    pub(crate) settings: Settings,
    #[command(subcommand)]
    pub(crate) command: RestartedCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum RestartedCommand {
    /// The second process
    Peer(peer::Args),
}

impl Restarted {
    /// Returns whether this process was started with such a command line.
    pub(crate) fn is_requested() -> bool {
        std::env::args_os()
            .nth(1)
            .is_some_and(|name| name == "peer")
    }
}
