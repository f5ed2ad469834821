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
mod peers;
mod python;
mod raw;
mod report;
mod suites;
mod ur;

use std::process::ExitCode;

use bench_report::Report;
use clap::{Args, Parser, Subcommand};

use crate::harness::measure::measure;
use crate::harness::plan::Plan;
use crate::harness::scenario::Scenario;
use crate::report::record::RecordArgs;

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
    /// The library, compared with other libraries that share memory, signal or load models
    Peers(PeersArgs),
    /// The Python module
    Python(PythonArgs),
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
    #[command(flatten)]
    record: RecordArgs,
}

#[derive(Args)]
struct PeersArgs {
    #[command(flatten)]
    suite: SuiteArgs,
    #[command(flatten)]
    program: python::Program,
}

#[derive(Args)]
struct PythonArgs {
    /// What to measure: host, gpu, or stages
    #[arg(default_value = "host")]
    part: String,
    #[command(flatten)]
    suite: SuiteArgs,
    #[command(flatten)]
    program: python::Program,
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
        Command::Host(args) => bench("host", host::SCENARIOS, &args),
        #[cfg(feature = "iceoryx2")]
        Command::Channel(args) => bench("channel", channel::SCENARIOS, &args),
        Command::Kernels(args) => {
            if let (false, Some(reason)) = (args.list, kernels::unavailable()) {
                eprintln!("nothing to measure: {reason}");
                return ExitCode::SUCCESS;
            }
            bench("kernels", kernels::SCENARIOS, &args)
        }
        Command::Cuda(args) => {
            if let (false, Some(reason)) = (args.list, cuda::unavailable()) {
                eprintln!("nothing to measure: {reason}");
                return ExitCode::SUCCESS;
            }
            bench("cuda", cuda::SCENARIOS, &args)
        }
        Command::Ur(args) => bench("ur", ur::SCENARIOS, &args),
        Command::Peers(PeersArgs { suite, program }) => {
            if suite.list {
                return list(peers::SCENARIOS);
            }
            report("peers", &suite, |plan| {
                let only = suite.only.as_deref();
                let mut report = measure(peers::SCENARIOS, plan, only)?;
                report.peers.extend(peers::versions());
                program.measure("peers", plan, only, &mut report)?;
                Ok(report)
            })
        }
        Command::Python(PythonArgs {
            part,
            suite,
            program,
        }) => report(&format!("python {part}"), &suite, |plan| {
            let mut report = measure(&[], plan, None)?;
            program.measure(&part, plan, suite.only.as_deref(), &mut report)?;
            Ok(report)
        }),
        Command::Child(args) => {
            harness::child::run(suites::find, &args.scenario, args.rank, &args.plan)
        }
    }
}

/// Measures the scenarios of a suite, and prints their rows.
fn bench(suite: &str, scenarios: &[&'static Scenario], args: &SuiteArgs) -> ExitCode {
    if args.list {
        return list(scenarios);
    }
    report(suite, args, |plan| {
        let mut report = measure(scenarios, plan, args.only.as_deref())?;
        if suite == "channel" {
            report.peers = report::record::iceoryx2();
        }
        Ok(report)
    })
}

/// Measures a suite, as often as asked, and prints the rows of the last run.
fn report(
    suite: &str,
    args: &SuiteArgs,
    measure: impl Fn(&Plan) -> anyhow::Result<Report>,
) -> ExitCode {
    let options = args.only.iter().flat_map(|only| ["--only", only]);
    let options: Vec<_> = options.map(str::to_owned).collect();
    let result = Plan::new(args.quick).and_then(|plan| {
        (args.record).run(suite, &options, || {
            let mut report = measure(&plan)?;
            anyhow::ensure!(
                !report.rows.is_empty(),
                "no scenario has this text in its name; --list shows them all"
            );
            report.machine.gpus = cuda::machine();
            Ok(report)
        })
    });
    let report = match result {
        Ok(report) => report,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::from(2);
        }
    };
    let mut out = std::io::stdout().lock();
    // If the reader closes the pipe early (`| head`), the rest of the output has no reader.
    let _ = match args.json {
        true => report.write_json(&mut out),
        false => report.write_table(&mut out),
    };
    if args.check {
        let missed = report.missed();
        if missed.is_empty() {
            eprintln!("every measured row reaches its target");
        } else {
            eprintln!("missed: {}", missed.join(", "));
            return ExitCode::from(1);
        }
    }
    ExitCode::from(u8::from(report.failed()))
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
