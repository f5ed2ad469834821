//! The `crosshandle` command: shares memory and events between processes, from a shell.

#![forbid(unsafe_code)]

mod cli;
mod commands;
mod failure;
mod input;
mod link;
mod new_file;
mod output;
mod peer;
mod progress;
mod settings;
mod transfer;
mod tuning;
mod units;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
