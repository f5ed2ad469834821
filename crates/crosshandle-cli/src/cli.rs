//! The command line.

use crate::commands::{ChildCommand, Command};
use crate::failure::{EXIT_STATUS_HELP, Result};
use crate::settings::Settings;
use clap::{CommandFactory, Parser};

const LONG_ABOUT: &str = "\
Shares device memory and synchronisation events between processes, through handles.

One process gets a handle to memory or to an event. The handle is one word, which can be sent in \
any way. Another process of the same machine opens it and has the same object: the same bytes and \
the same state, without a copy.

A handle is a capability: it contains a secret key of its object. If other users must not see it \
in the list of processes, give `-` as HANDLE and pass the handle on standard input.";

/// Shares memory and events between processes, through handles
#[derive(Parser, Debug)]
#[command(name = "crosshandle", version, long_about = LONG_ABOUT, after_help = EXIT_STATUS_HELP)]
#[command(
    propagate_version = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
struct Cli {
    #[command(flatten)]
    settings: Settings,
    #[command(subcommand)]
    command: Command,
}

/// The command line that this program uses to start itself as a child process.
///
/// This is not a subcommand of [`Cli`], so manual pages and completions do not mention it.
#[derive(Parser, Debug)]
#[command(name = "crosshandle")]
struct ChildCli {
    #[command(flatten)]
    settings: Settings,
    #[command(subcommand)]
    command: ChildCommand,
}

impl ChildCli {
    /// Returns `true` if this process was started as a child process.
    fn is_requested() -> bool {
        std::env::args_os()
            .nth(1)
            .is_some_and(|name| name == "peer" || name == "successor")
    }
}

/// Parses the command line and runs the command. Wrong usage ends the process with status 2.
pub(crate) fn run() -> Result<()> {
    if ChildCli::is_requested() {
        let ChildCli { settings, command } = ChildCli::parse();
        settings.apply();
        return command.run(&settings);
    }
    let Cli { settings, command } = Cli::parse();
    settings.apply();
    command.run(&settings, Cli::command)
}
