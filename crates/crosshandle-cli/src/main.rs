//! The `crosshandle` command: shares memory and events between processes, from a shell.

#![forbid(unsafe_code)]
// A program without some commands does not need everything.
#![cfg_attr(
    not(all(feature = "links", feature = "texts", feature = "top")),
    allow(dead_code)
)]

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

use failure::Failure;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Stack size in bytes of the thread that runs a command. Unoptimized builds need much of it, and
/// unused pages take no memory.
const COMMAND_STACK_BYTES: usize = 8 << 20;

fn main() -> ExitCode {
    // With this handler, a write beyond RLIMIT_FSIZE returns an error. Without it, SIGXFSZ ends the
    // process.
    let _ = signal_hook::flag::register(
        signal_hook::consts::SIGXFSZ,
        Arc::new(AtomicBool::new(false)),
    );
    // Run the command on a new thread, because `ulimit -s` may limit the first thread's stack to
    // less than a command needs.
    let command = std::thread::Builder::new()
        .name("command".into())
        .stack_size(COMMAND_STACK_BYTES)
        .spawn(cli::run);
    let ended = match command {
        Ok(command) => command.join().unwrap_or_else(|_| {
            // The panic hook has printed the reason.
            Err(Failure::error("this is a bug in crosshandle"))
        }),
        Err(error) => Err(Failure::error(format!("starting a thread: {error}"))),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
