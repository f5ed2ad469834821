//! `crosshandle peer`: the child process of `demo` and `doctor`.
//!
//! The child process communicates with its parent over standard input and output. Users have no
//! reason to run this command.

use super::{demo, doctor};
use crate::failure::{ErrorContext as _, Result};
use crate::link::Link;
use crate::peer::Role;
use crate::settings::Settings;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    role: Role,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let mut link = Link::to_parent()?;
    match args.role {
        Role::Demo => demo::run_child(&mut link, settings),
        Role::Doctor => doctor::run_child(&mut link, settings),
    }
    .context("second process")
}
