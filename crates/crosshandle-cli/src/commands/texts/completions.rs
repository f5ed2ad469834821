//! `crosshandle completions SHELL`.

use crate::failure::{Failure, Result};
use clap_complete::Shell;
use std::io::{self, Write};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args, mut command_line: clap::Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command_line, "crosshandle", &mut script);
    let mut output = io::stdout().lock();
    output
        .write_all(&script)
        .and_then(|()| output.flush())
        .map_err(|error| Failure::output(&error))
}
