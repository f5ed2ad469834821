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
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

fn main() -> ExitCode {
    // With a handler, a write beyond RLIMIT_FSIZE is an error; without one the signal ends the process.
    let _ = signal_hook::flag::register(
        signal_hook::consts::SIGXFSZ,
        Arc::new(AtomicBool::new(false)),
    );
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
