//! `crosshandle peer`: the second process of `demo` and `doctor`. It exchanges messages with the
//! first one over its standard input and output, so it is of no use to others.

use super::{demo, doctor};
use crate::cli::Settings;
use crate::failure::{Context, Result};
use crate::link::Link;
use clap::ValueEnum;

/// The purpose of the second process.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum Role {
    Demo,
    Doctor,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    role: Role,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let mut link = Link::to_parent()?;
    match args.role {
        Role::Demo => demo::answer(&mut link, settings),
        Role::Doctor => doctor::answer(&mut link, settings),
    }
    .context("second process")
}
