//! `crosshandle man [DIR]`.

use crate::failure::{ErrorContext as _, Failure, Result};
use clap_mangen::Man;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Directory for the pages of all commands. Without it, the main page goes to standard output
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, command_line: clap::Command) -> Result<()> {
    if let Some(directory) = &args.directory {
        let doing = || format!("writing manual pages into {}", directory.display());
        fs::create_dir_all(directory).context(doing())?;
        return clap_mangen::generate_to(command_line, directory).context(doing());
    }
    let mut page = Vec::new();
    Man::new(command_line)
        .render(&mut page)
        .context("making the manual page")?;
    let mut output = io::stdout().lock();
    output
        .write_all(&page)
        .and_then(|()| output.flush())
        .map_err(|error| Failure::output(&error))
}
