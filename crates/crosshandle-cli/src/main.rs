//! The `crosshandle` command: shares memory and events between processes, from a shell.

#![forbid(unsafe_code)]

mod cli;
mod commands;
mod failure;
mod link;
mod origin;
mod output;
mod peer;
mod progress;
mod transfer;
mod units;

use clap::Parser;
use cli::{Cli, Restarted};
use std::process::ExitCode;

fn main() -> ExitCode {
    // For wrong usage the parser ends the process with exit code 2.
    let result = if Restarted::is_requested() {
        commands::run_restarted(&Restarted::parse())
    } else {
        commands::run(Cli::parse())
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
