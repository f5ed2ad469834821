//! Benchmarks of Crosshandle, compared with the raw techniques that it is built on.
//!
//! Each row of the table is measured in fresh child processes of this binary. The library (*ours*)
//! and the raw technique alternate in the same processes, so that the machine's noise affects both
//! equally. `docs/performance.md` explains the rows and the method.

#[cfg(feature = "iceoryx2")]
mod channel;
mod cuda;
mod harness;
mod host;
mod kernels;
mod raw;
mod report;
mod suites;
mod ur;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::harness::measure::measure;
use crate::harness::plan::Plan;
use crate::harness::scenario::Scenario;

/// Benchmarks of Crosshandle, compared with the raw techniques that it is built on.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Memory and events of the host backend
    Host(SuiteArgs),
    /// Channels, compared with iceoryx2
    #[cfg(feature = "iceoryx2")]
    Channel(SuiteArgs),
    /// Kernels of the host backend, compared with the OpenCL runtime that runs them
    Kernels(SuiteArgs),
    /// Memory and events of the CUDA backend
    Cuda(SuiteArgs),
    /// The Unified Runtime adapter: the cost that the loader and the adapter add to the library's
    /// calls
    Ur(SuiteArgs),
    /// One process of a measurement, which the benchmark itself starts
    #[command(hide = true)]
    Child(ChildArgs),
}

#[derive(Args)]
struct SuiteArgs {
    /// Print the rows as JSON instead of a Markdown table
    #[arg(long)]
    json: bool,
    /// Exit with code 1 if a row misses its target, and print the names of such rows on the last
    /// line
    #[arg(long)]
    check: bool,
    /// Shorter runs for trying things out, whose results must not be quoted
    #[arg(long)]
    quick: bool,
    /// Measure only the scenarios whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// List the scenarios and their rows without measuring
    #[arg(long)]
    list: bool,
}

#[derive(Args)]
struct ChildArgs {
    scenario: String,
    /// 0 for the leader, 1 or more for the followers
    rank: usize,
    /// The plan, as JSON
    plan: String,
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Host(args) => bench(host::SCENARIOS, &args, || None),
        #[cfg(feature = "iceoryx2")]
        Command::Channel(args) => bench(channel::SCENARIOS, &args, || None),
        Command::Kernels(args) => {
            if let (false, Some(reason)) = (args.list, kernels::unavailable()) {
                eprintln!("nothing to measure: {reason}");
                return ExitCode::SUCCESS;
            }
            bench(kernels::SCENARIOS, &args, || None)
        }
        Command::Cuda(args) => {
            if let (false, Some(reason)) = (args.list, cuda::unavailable()) {
                eprintln!("nothing to measure: {reason}");
                return ExitCode::SUCCESS;
            }
            bench(cuda::SCENARIOS, &args, cuda::machine)
        }
        Command::Ur(args) => bench(ur::SCENARIOS, &args, || None),
        Command::Child(args) => {
            harness::child::run(suites::find, &args.scenario, args.rank, &args.plan)
        }
    }
}

/// Measures a suite and prints its rows. `gpus` returns the names of the measured GPUs.
fn bench(
    scenarios: &[&'static Scenario],
    args: &SuiteArgs,
    gpus: fn() -> Option<String>,
) -> ExitCode {
    if args.list {
        return list(scenarios);
    }
    let plan = match Plan::new(args.quick) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::from(2);
        }
    };
    let report = match measure(scenarios, &plan, args.only.as_deref()) {
        Ok(mut report) => {
            report.machine.gpus = gpus();
            report
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::from(2);
        }
    };
    // If the reader closes the pipe early (`| head`), the rest of the output has no reader.
    let _ = if args.json {
        report.print_json()
    } else {
        report.print_table()
    };
    let failed = report.failed();
    if args.check {
        let missed = report.missed();
        if missed.is_empty() {
            eprintln!("every measured row reaches its target");
        } else {
            eprintln!("missed: {}", missed.join(", "));
            return ExitCode::from(1);
        }
    }
    ExitCode::from(u8::from(failed))
}

/// Prints the scenarios and their rows.
fn list(scenarios: &[&Scenario]) -> ExitCode {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    for scenario in scenarios {
        let _ = writeln!(out, "{}", scenario.name);
        for row in scenario.rows {
            let _ = writeln!(out, "    {:28} {} (raw: {})", row.id, row.what, row.raw);
        }
    }
    ExitCode::SUCCESS
}
