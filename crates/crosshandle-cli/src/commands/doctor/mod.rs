//! `crosshandle doctor`: what works on this machine, and what to do about the rest.

mod drivers;
mod huge_pages;
mod isolation;
mod kernel;
mod limits;
mod round_trip;
mod row;
mod sockets;

pub(crate) use round_trip::answer;

use crate::cli::Settings;
use crate::failure::{Failure, Result};
use crate::output;
use crate::progress::Progress;
use row::{Level, Row};
use serde::Serialize;

pub(crate) const AFTER_HELP: &str = "\
A row is ok, a note (it works, but could do better or needs to be known), or a problem.

Exit status: 0 if there is no problem, 1 if there is one, 2 for wrong usage.";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print the checks as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    healthy: bool,
    checks: &'a [Row],
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let rows = check(settings);
    let problems = rows
        .iter()
        .filter(|row| row.level == Level::Problem)
        .count();
    if args.json {
        output::json(&Report {
            healthy: problems == 0,
            checks: &rows,
        })?;
    } else {
        print(&rows)?;
    }
    match problems {
        0 => Ok(()),
        1 => Err(Failure::error("there is a problem, see above")),
        many => Err(Failure::error(format!(
            "there are {many} problems, see above"
        ))),
    }
}

fn check(settings: &Settings) -> Vec<Row> {
    let progress = Progress::steps("checking limits");
    let mut rows = vec![kernel::version(), kernel::host_identity()];
    rows.push(kernel::wait_for_several());
    rows.extend([
        limits::descriptors(),
        limits::mappings(),
        limits::address_space(),
    ]);
    progress.step("checking huge pages");
    rows.push(huge_pages::check());
    rows.extend([isolation::yama(), isolation::namespaces()]);
    rows.push(sockets::check(settings.origin.socket_dir.as_deref()));
    progress.step("sharing with a second process");
    rows.extend(round_trip::check(settings));
    rows.extend(drivers::check());
    rows
}

fn print(rows: &[Row]) -> Result<()> {
    let mut table = output::table();
    table.set_header(["", "check", "found"]);
    for row in rows {
        table.add_row([row.level.name(), row.check.as_str(), row.found.as_str()]);
        if let Some(advice) = &row.advice {
            table.add_row(["", "", &format!("→ {advice}")]);
        }
    }
    output::print_table(&mut table)
}
