//! `crosshandle doctor`: reports what works on this machine, and how to fix the rest.

mod check;
mod drivers;
mod huge_pages;
mod isolation;
mod kernel;
mod limits;
mod round_trip;
mod sockets;

pub(super) use round_trip::run_child;

use crate::failure::{Failure, Result};
use crate::output;
use crate::progress::Progress;
use crate::settings::Settings;
use check::{Check, Level};
use serde::Serialize;

pub(crate) const AFTER_HELP: &str = "\
Each row is ok, a note (it works, but could work better, or there is something to know), or a problem.

Exit status: 0 if there is no problem, 1 if there is one, 2 for wrong usage.";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print the checks as JSON
    #[arg(long)]
    json: bool,
}

/// All checks, in the form of the JSON output.
#[derive(Serialize)]
struct Report<'a> {
    healthy: bool,
    checks: &'a [Check],
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let checks = run_checks(settings);
    let problems = checks
        .iter()
        .filter(|check| check.level == Level::Problem)
        .count();
    if args.json {
        output::json(&Report {
            healthy: problems == 0,
            checks: &checks,
        })?;
    } else {
        print_table(&checks)?;
    }
    match problems {
        0 => Ok(()),
        1 => Err(Failure::error("there is a problem, see above")),
        many => Err(Failure::error(format!(
            "there are {many} problems, see above"
        ))),
    }
}

fn run_checks(settings: &Settings) -> Vec<Check> {
    let progress = Progress::steps("checking limits");
    let mut checks = vec![kernel::version(), kernel::host_identity()];
    checks.push(kernel::wait_for_several());
    checks.extend([
        limits::descriptors(),
        limits::mappings(),
        limits::address_space(),
        limits::file_size(),
        limits::memory(),
    ]);
    progress.step("checking huge pages");
    checks.push(huge_pages::check());
    checks.extend([isolation::yama(), isolation::namespaces()]);
    checks.push(sockets::check(settings.socket_dir.as_deref()));
    progress.step("sharing with a second process");
    checks.extend(round_trip::check(settings));
    checks.extend(drivers::check());
    progress.step("looking for a runtime for kernels");
    checks.push(drivers::host_kernels());
    progress.step("looking for UCX");
    checks.push(drivers::ucx());
    checks
}

fn print_table(checks: &[Check]) -> Result<()> {
    let mut table = output::table();
    table.set_header(["", "check", "found"]);
    for check in checks {
        let cells = [check.level.name(), &check.check, &check.found];
        output::add_row(&mut table, cells);
        if let Some(advice) = &check.advice {
            output::add_row(&mut table, ["", "", &format!("→ {advice}")]);
        }
    }
    output::print_table(&mut table)
}
